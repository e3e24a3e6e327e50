"""What other compiled modules may use of infos.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    RECORDS = 1, KEYS = 2  # what a message begins with; a pickle begins with 0x80
    HEAD_NBYTES = 24

    # Flags of a record:
    OVER = 1  # the environment's episode is over: {"env": True}
    EPISODE = 2  # and the episode's statistics follow the head
    OF_AGENT = 4  # it is an agent's

# What a record begins with, then the values.
cdef struct Head:
    uint32_t nbytes  # with the head
    uint16_t schema  # its number in the worker that wrote it
    uint16_t flags
    uint32_t agent_index
    uint32_t env_id  # what follows is only known where the record is read
    uint32_t row  # of the batch
    uint32_t unused

# Whether an info tells nothing.
cdef inline bint is_empty(object info) noexcept:
    return info is None or (type(info) is dict and len(<dict>info) == 0)

# Return a copy of a dict, as ``own`` of emulation/infos.py makes it.
cdef dict owned(dict info, object own)

cdef class Schema:
    cdef readonly tuple keys
    cdef readonly dict index_of  # key → number of the value
    cdef readonly uint16_t number

cdef class InfoWriter:
    cdef dict schemas
    cdef set candidates
    cdef bytearray memory
    cdef char *bytes
    cdef readonly uint32_t nbytes  # of the message so far
    cdef int depth  # of dicts in dicts, while one is written
    cdef int likely  # number of the dtype of NumPy's last scalar, as the next is mostly of the same
    cdef Schema new  # a schema that has to be told first

    cdef Schema schema_of(self, dict info, Schema likely)
    cdef void begin(self) noexcept
    cdef bint add(self, Schema schema, dict info, uint16_t flags, uint32_t agent_index, const double *episode) except -1
    cdef bint write(self, object value) except -1
    cdef bint write_nested(self, dict nested) except -1
    cdef bint write_array(self, object array) except -1
    cdef inline bint put(self, uint8_t kind, const void *bytes, size_t nbytes) noexcept

cdef struct Message:
    char *bytes
    uint32_t nbytes, room

cdef class InfoStore:
    cdef Message *messages  # of each environment: the records that have come for its next row
    cdef uint64_t num_messages
    cdef list schemas  # of each environment: those of its records
    cdef list known  # of each worker: its schemas, by number

    cdef char *room(self, uint64_t env_id, uint32_t nbytes) except NULL
    cdef int arrive(self, uint32_t worker, uint64_t env_id) except -1
    cdef int learn(self, uint32_t worker, bytes payload) except -1
    cpdef bint has(self, uint64_t env_id) noexcept

cdef class Records:
    cdef list items
    cdef bytes data
    cdef uint32_t agents_per_env

    cdef dict dict_of(self, Schema schema, const char **at)
