"""The declarations of infos.pyx for other compiled modules."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    RECORDS = 1, KEYS = 2  # first byte of a message; a pickle starts with 0x80
    HEAD_NBYTES = 24

    # Flags of a record:
    OVER = 1  # the environment's episode is over: {"env": True}
    EPISODE = 2  # the episode's statistics follow the head
    OF_AGENT = 4  # the info is an agent's

# The start of a record; the values follow.
cdef struct Head:
    uint32_t nbytes  # including the head
    uint16_t schema  # its number in the writing worker
    uint16_t flags
    uint32_t agent_index
    uint32_t env_id  # this and the next field are set where the record is read
    uint32_t row  # of the batch
    uint32_t unused

# Return whether an info is None or an empty dict.
cdef inline bint is_empty(object info) noexcept:
    return info is None or (type(info) is dict and len(<dict>info) == 0)

# Return a copy of an info as ``copy_value`` of emulation/infos.py, which is passed, makes it.
cdef dict copy_info(dict info, object copy_value)

cdef class Schema:
    cdef readonly tuple keys
    cdef readonly dict index_of  # key → index of the value
    cdef readonly uint16_t number

cdef class InfoWriter:
    cdef dict schemas
    cdef set candidates
    cdef bytearray memory
    cdef char *bytes
    cdef readonly uint32_t nbytes  # of the message so far
    cdef int depth  # of nested dicts, while one is written
    cdef int likely_dtype  # index of the last NumPy scalar's dtype, which is tried first
    cdef Schema new_schema  # a schema that must be sent first

    cdef Schema schema_of(self, dict info, Schema likely_schema)
    cdef void begin(self) noexcept
    cdef bint add(self, Schema schema, dict info, uint16_t flags, uint32_t agent_index, const double *episode) except -1
    cdef bint write(self, object value) except -1
    cdef bint write_nested(self, dict nested) except -1
    cdef bint write_array(self, object array) except -1
    cdef inline bint put(self, uint8_t kind, const void *bytes, size_t nbytes) noexcept

cdef struct Message:
    char *bytes
    uint32_t nbytes, capacity

cdef class InfoStore:
    cdef Message *messages  # by environment: the records for its next row
    cdef uint64_t num_messages
    cdef list schemas  # by environment: the schema of its only record, or a list of those of its records; or None
    cdef list worker_schemas  # by worker: its schemas, by number

    cdef char *reserve(self, uint64_t env_id, uint32_t nbytes) except NULL
    cdef int resolve_schemas(self, uint32_t worker, uint64_t env_id) except -1
    cdef int add_schema(self, uint32_t worker, bytes payload) except -1
    cpdef bint has(self, uint64_t env_id) noexcept
    cpdef int drop(self, uint64_t env_id) except -1

cdef class Records:
    cdef list items
    cdef bytes data
    cdef uint32_t agents_per_env

    cdef dict dict_of(self, Schema schema, const char **cursor)
