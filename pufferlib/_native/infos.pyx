"""Transfer of infos from worker to parent: as copies, or as records of bytes that are decoded only when read.

A worker writes each info of an environment as a record: a head, then the values, each after a byte for its kind. A
record has no keys, only the number of a schema that the worker has sent before. Numbers, short texts, None, small
arrays and dicts of these have kinds; an info with any other value is sent pickled instead. The parent keeps the bytes
with the batch, and builds the dicts on first access.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Copy, PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from pufferlib._native.arrays cimport (
    puf_data, puf_descr, puf_dim, puf_is_array, puf_is_plain, puf_ndim, puf_scalar
)

import pickle

import numpy

__all__ = ["InfoStore", "InfoWriter", "Records", "Schema", "column_of", "keys_of"]

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object, int *)
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    object PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)
    void *Py_TYPE(object)

cdef enum:
    MOST_NBYTES = 4096  # of a message
    MOST_ARRAY_NBYTES = 1024
    MOST_TEXT_NBYTES = 255
    MOST_DIMENSIONS = 8
    MOST_DEPTH = 3  # of dicts in dicts
    NESTED_HEAD = 4  # kind, length (two bytes), number of entries
    MOST_SCHEMAS = 256  # of a worker
    MOST_CANDIDATES = 1024
    NUM_DTYPES = 13

    # Kinds of values. NumPy's scalars follow: SCALAR + the number of their dtype.
    NONE = 0, FALSE, TRUE, INT, FLOAT, TEXT, ARRAY, NESTED
    SCALAR = 16

cdef object NDARRAY = numpy.ndarray
cdef object EMPTY = numpy.empty
cdef object ZEROS = numpy.zeros
# The dtypes of values, which are written as their bytes; an array of one element of each, to read scalars from.
cdef list DTYPE_LIST = [numpy.dtype(code) for code in ("?", "b", "h", "i", "l", "B", "H", "I", "L", "e", "f", "d", "D")]
cdef list TYPE_LIST = [dtype.type for dtype in DTYPE_LIST]
cdef list ELEMENTS = [numpy.zeros(1, dtype) for dtype in DTYPE_LIST]
cdef PyObject *DTYPES[NUM_DTYPES]
cdef PyObject *TYPES[NUM_DTYPES]
cdef size_t SIZES[NUM_DTYPES]
cdef int number
for number in range(NUM_DTYPES):
    DTYPES[number] = <PyObject *>DTYPE_LIST[number]
    TYPES[number] = <PyObject *>TYPE_LIST[number]
    SIZES[number] = DTYPE_LIST[number].itemsize
cdef object FLOAT64 = numpy.dtype("d")
cdef object INT64 = numpy.dtype("l")
cdef object BOOL = numpy.dtype("?")


cdef dict copy_info(dict info, object copy_value):
    cdef PyObject *key
    cdef PyObject *item
    cdef Py_ssize_t position = 0
    cdef dict copy = PyDict_Copy(info)
    while PyDict_Next(info, &position, &key, &item):
        value = <object>item
        if PyFloat_CheckExact(value) or PyLong_CheckExact(value) or PyUnicode_CheckExact(value):
            continue
        if puf_is_array(value, NDARRAY):
            copy[<object>key] = value.copy()  # replaces a value, so the order stays
        elif type(value) is list or type(value) is tuple or isinstance(value, (dict, NDARRAY)):
            copy[<object>key] = copy_value(value)
    return copy


@cython.final
cdef class Schema:
    """The keys of an info, in order."""

    def __init__(self, tuple keys, uint16_t number):
        self.keys, self.number = keys, number
        self.index_of = {key: index for index, key in enumerate(keys)}


cdef bint has_keys(dict info, Schema schema):
    """Return whether an info has exactly these keys, in this order."""
    cdef PyObject *key
    cdef PyObject *value
    cdef PyObject *expected
    cdef Py_ssize_t position = 0, index = 0
    if len(info) != len(schema.keys):
        return False
    while PyDict_Next(info, &position, &key, &value):
        expected = PyTuple_GET_ITEM(schema.keys, index)
        if key != expected and not (PyUnicode_CheckExact(<object>key) and <str><object>key == <str><object>expected):
            return False
        index += 1
    return True


# -------------------------------------------------------------------------------------------------- in a worker

@cython.final
cdef class InfoWriter:
    """A writer of infos as records into a message of up to ``nbytes``, for one environment at a time."""

    def __init__(self):
        self.schemas, self.candidates = {}, set()
        self.memory = bytearray(MOST_NBYTES)
        self.bytes = self.memory
        self.nbytes = self.likely_dtype = 0

    cdef Schema schema_of(self, dict info, Schema likely_schema):
        """Return the schema of an info; None if the info must be sent pickled. likely_schema: tried first if not None.

        A schema that has not been sent yet is also stored as ``new_schema``. Only keys that occur a second time get a
        schema, since some never repeat.
        """
        cdef Schema schema
        if likely_schema is not None and has_keys(info, likely_schema):
            return likely_schema
        for key in info:
            if type(key) is not str:
                return None
        keys = tuple(info)
        schema = self.schemas.get(keys)
        if schema is not None or len(self.schemas) == MOST_SCHEMAS:
            return schema
        if keys not in self.candidates:
            if len(self.candidates) == MOST_CANDIDATES:
                self.candidates.clear()
            self.candidates.add(keys)
            return None
        self.new_schema = Schema(keys, <uint16_t>len(self.schemas))
        return self.new_schema

    def new_schema_message(self):
        """Return the message that announces the new schema."""
        return bytes([KEYS]) + pickle.dumps((self.new_schema.number, self.new_schema.keys))

    def add_new_schema(self):
        """Add the new schema, once it has been sent."""
        self.candidates.discard(self.new_schema.keys)
        self.schemas[self.new_schema.keys] = self.new_schema
        self.new_schema = None

    cdef void begin(self) noexcept:
        """Start an empty message."""
        self.bytes[0] = RECORDS
        self.nbytes, self.depth = 1, 0

    cdef bint add(
        self, Schema schema, dict info, uint16_t flags, uint32_t agent_index, const double *episode
    ) except -1:
        """Add a record of an info with the schema's keys; return False if a value has no kind or does not fit.

        episode: return, length and seconds; read if the flags have EPISODE.
        """
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t position = 0
        cdef Head head
        cdef uint32_t start = self.nbytes
        if start + HEAD_NBYTES + 3 * sizeof(double) > MOST_NBYTES:
            return False
        self.nbytes += HEAD_NBYTES
        if flags & EPISODE:
            memcpy(self.bytes + self.nbytes, episode, 3 * sizeof(double))
            self.nbytes += 3 * sizeof(double)
        while PyDict_Next(info, &position, &key, &value):
            if not self.write(<object>value):
                self.nbytes = start
                return False
        head.nbytes, head.schema, head.flags, head.agent_index = self.nbytes - start, schema.number, flags, agent_index
        head.env_id = head.row = head.unused = 0
        memcpy(self.bytes + start, &head, HEAD_NBYTES)
        return True

    cdef bint write(self, object value) except -1:
        cdef int64_t int_value
        cdef double float_value
        cdef int overflow, index
        cdef const char *text
        cdef Py_ssize_t size
        if PyFloat_CheckExact(value):
            float_value = PyFloat_AS_DOUBLE(value)
            return self.put(FLOAT, &float_value, sizeof(double))
        if TYPES[self.likely_dtype] == <PyObject *>Py_TYPE(value):
            return self.put(<uint8_t>(SCALAR + self.likely_dtype), puf_scalar(value), SIZES[self.likely_dtype])
        if PyLong_CheckExact(value):
            int_value = PyLong_AsLongLongAndOverflow(value, &overflow)
            return not overflow and self.put(INT, &int_value, sizeof(int64_t))
        if value is True or value is False:
            return self.put(TRUE if value is True else FALSE, NULL, 0)
        if value is None:
            return self.put(NONE, NULL, 0)
        if PyUnicode_CheckExact(value):
            if len(<str>value) > MOST_TEXT_NBYTES:
                return False
            try:
                text = PyUnicode_AsUTF8AndSize(value, &size)
            except UnicodeEncodeError:  # a lone surrogate
                return False
            return size <= MOST_TEXT_NBYTES and self.put(TEXT, NULL, 0) and self.put(<uint8_t>size, text, size)
        if puf_is_array(value, NDARRAY):
            return self.write_array(value)
        if type(value) is dict:
            return self.write_nested(value)
        for index in range(NUM_DTYPES):
            if TYPES[index] == <PyObject *>Py_TYPE(value):
                if index == NUM_DTYPES - 1:  # a complex scalar's value may have another offset
                    return False
                self.likely_dtype = index
                return self.put(<uint8_t>(SCALAR + index), puf_scalar(value), SIZES[index])
        return False

    cdef bint write_nested(self, dict nested) except -1:
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t position = 0
        cdef uint32_t start = self.nbytes
        cdef uint16_t nbytes
        cdef bint is_written = True
        if self.depth == MOST_DEPTH or len(nested) > 255 or start + NESTED_HEAD > MOST_NBYTES:
            return False
        self.nbytes += NESTED_HEAD
        self.depth += 1
        while is_written and PyDict_Next(nested, &position, &key, &value):
            is_written = PyUnicode_CheckExact(<object>key) and self.write(<object>key) and self.write(<object>value)
        self.depth -= 1
        if not is_written:
            return False
        nbytes = <uint16_t>(self.nbytes - start)
        self.bytes[start] = NESTED
        memcpy(self.bytes + start + 1, &nbytes, sizeof(nbytes))
        self.bytes[start + 3] = <char>len(nested)
        return True

    cdef bint write_array(self, object array) except -1:
        cdef int index, axis, ndim = puf_ndim(array)
        cdef uint8_t byte
        cdef uint32_t length
        cdef size_t nbytes
        if ndim > MOST_DIMENSIONS:
            return False
        for index in range(NUM_DTYPES):
            if DTYPES[index] == puf_descr(array):
                break
        else:
            return False
        nbytes = SIZES[index]
        for axis in range(ndim):
            nbytes *= <size_t>puf_dim(array, axis)
            if nbytes > MOST_ARRAY_NBYTES or puf_dim(array, axis) > MOST_ARRAY_NBYTES:
                return False
        if not puf_is_plain(array):
            array = array.copy()
        byte = <uint8_t>ndim
        if not (self.put(ARRAY, NULL, 0) and self.put(<uint8_t>index, &byte, 1)):
            return False
        for axis in range(ndim):
            length = <uint32_t>puf_dim(array, axis)
            if self.nbytes + sizeof(length) > MOST_NBYTES:
                return False
            memcpy(self.bytes + self.nbytes, &length, sizeof(length))
            self.nbytes += sizeof(length)
        if self.nbytes + nbytes > MOST_NBYTES:
            return False
        memcpy(self.bytes + self.nbytes, puf_data(array), nbytes)
        self.nbytes += <uint32_t>nbytes
        return True

    cdef inline bint put(self, uint8_t kind, const void *bytes, size_t nbytes) noexcept:
        """Write a byte followed by other bytes; return False if they do not fit."""
        if self.nbytes + 1 + nbytes > MOST_NBYTES:
            return False
        self.bytes[self.nbytes] = <char>kind
        if nbytes:
            memcpy(self.bytes + self.nbytes + 1, bytes, nbytes)
        self.nbytes += 1 + <uint32_t>nbytes
        return True


# -------------------------------------------------------------------------------------------------- in the parent

@cython.final
cdef class InfoStore:
    """The records that have arrived for rows not received yet, by environment."""

    def __cinit__(self):
        self.messages, self.num_messages = NULL, 0

    def __init__(self, uint32_t num_workers):
        self.schemas, self.worker_schemas = [], [[] for _ in range(num_workers)]

    def __dealloc__(self):
        cdef uint64_t env_id
        for env_id in range(self.num_messages):
            free(self.messages[env_id].bytes)
        free(self.messages)

    cdef char *reserve(self, uint64_t env_id, uint32_t nbytes) except NULL:
        """Return memory for an environment's message, which replaces its previous one."""
        cdef Message *message
        cdef void *memory
        cdef uint64_t num = self.num_messages
        if env_id >= num:
            num = max(env_id + 1, 2 * num)
            memory = realloc(self.messages, num * sizeof(Message))
            if not memory:
                raise MemoryError
            self.messages = <Message *>memory
            while self.num_messages < num:
                self.messages[self.num_messages] = Message(NULL, 0, 0)
                self.num_messages += 1
                self.schemas.append(None)
        message = &self.messages[env_id]
        if message.capacity < nbytes:
            memory = realloc(message.bytes, nbytes)
            if not memory:
                raise MemoryError
            message.bytes, message.capacity = <char *>memory, nbytes
        message.nbytes = nbytes
        return message.bytes

    cdef int resolve_schemas(self, uint32_t worker, uint64_t env_id) except -1:
        """Look up the schemas of an environment's message once it has been written."""
        cdef Message *message = &self.messages[env_id]
        cdef uint32_t offset = 1
        cdef Head head
        cdef list worker_schemas = self.worker_schemas[worker], schemas
        if message.nbytes > HEAD_NBYTES:
            memcpy(&head, message.bytes + offset, HEAD_NBYTES)
            if offset + head.nbytes == message.nbytes:  # the usual case, which needs no list
                self.schemas[env_id] = worker_schemas[head.schema]
                return 0
        schemas = []
        while offset < message.nbytes:
            memcpy(&head, message.bytes + offset, HEAD_NBYTES)
            schemas.append(worker_schemas[head.schema])
            offset += head.nbytes
        self.schemas[env_id] = schemas
        return 0

    cdef int add_schema(self, uint32_t worker, bytes payload) except -1:
        """Add a worker's next schema, read from the message that announces it."""
        cdef list worker_schemas = self.worker_schemas[worker]
        number, keys = pickle.loads(payload[1:])
        if number == len(worker_schemas):  # else the worker has sent it before
            worker_schemas.append(Schema(keys, number))
        return 0

    cpdef bint has(self, uint64_t env_id) noexcept:
        """Return whether records have arrived for an environment's next row."""
        return env_id < self.num_messages and self.messages[env_id].nbytes > 0

    cpdef int drop(self, uint64_t env_id) except -1:
        """Forget the records of an environment."""
        if env_id < self.num_messages:
            self.messages[env_id].nbytes = 0
            self.schemas[env_id] = None
        return 0

    def clear(self):
        """Forget the records of all environments."""
        cdef uint64_t env_id
        for env_id in range(self.num_messages):
            self.drop(env_id)

    def forget_worker(self, uint32_t worker):
        """Forget the schemas of a worker that has ended; its replacement numbers them from 0 again."""
        self.worker_schemas[worker] = []


@cython.final
cdef class Records:
    """The source of an Infos: a mixture of records and of infos that are already dicts.

    items: for each info in order, a dict, the Schema of a record, or None for a record without keys. data: the
    records, one after another.
    """

    def __init__(self, list items, bytes data, uint32_t agents_per_env):
        self.items, self.data, self.agents_per_env = items, data, agents_per_env

    @property
    def count(self):
        """Return the number of infos."""
        return len(self.items)

    def read(self):
        """Return the infos as dicts, new ones for records."""
        cdef list infos = []
        cdef const char *cursor = PyBytes_AS_STRING(self.data)
        cdef object item
        for item in self.items:
            if item is None or type(item) is Schema:
                infos.append(self.dict_of(item, &cursor))
            else:
                infos.append(item)
        return infos

    cdef dict dict_of(self, Schema schema, const char **cursor):
        cdef Head head
        cdef double episode[3]
        cdef dict info = {}
        cdef Py_ssize_t index
        memcpy(&head, cursor[0], HEAD_NBYTES)
        cursor[0] += HEAD_NBYTES
        if head.flags & EPISODE:
            memcpy(episode, cursor[0], sizeof(episode))
            cursor[0] += sizeof(episode)
        if schema is not None:
            for index in range(len(schema.keys)):
                info[<object>PyTuple_GET_ITEM(schema.keys, index)] = read_value(cursor)
        if head.flags & OVER:
            info["env"] = True
        if head.flags & EPISODE:
            info["episode"] = {"r": episode[0], "l": <long>episode[1], "t": episode[2]}
        info["env_id"] = head.env_id
        if head.flags & OF_AGENT:
            info["agent_id"] = <uint64_t>head.env_id * self.agents_per_env + head.agent_index
        return info

    def keys(self):
        """Return the keys of all infos, each once, in the order of their first occurrence."""
        cdef const char *cursor = PyBytes_AS_STRING(self.data)
        cdef Head head
        cdef dict keys = {}
        cdef object item, key
        cdef Schema last = None
        for item in self.items:
            if item is not None and type(item) is not Schema:
                keys.update(dict.fromkeys(item))
                continue
            memcpy(&head, cursor, HEAD_NBYTES)
            cursor += head.nbytes
            if item is not None and item is not last:
                last = item
                for key in last.keys:
                    keys[key] = None
            if head.flags & OVER:
                keys["env"] = None
            if head.flags & EPISODE:
                keys["episode"] = None
            keys["env_id"] = None
            if head.flags & OF_AGENT:
                keys["agent_id"] = None
        return list(keys)

    def column(self, name, Py_ssize_t num_rows):
        """Return (values, mask) as ``Infos.column`` does; None if that needs the dicts.

        It needs them if an info is already a dict, or if values are not all numbers of one kind or arrays of one shape.
        """
        cdef const char *cursor = PyBytes_AS_STRING(self.data)
        cdef const char *value
        cdef const char *pattern = NULL
        cdef char *target = NULL
        cdef char *masks
        cdef size_t pattern_nbytes = 0, nbytes = 0
        cdef Head head
        cdef object item, values = None, mask, position
        cdef object last = self  # no item, so that the first is looked up
        cdef Py_ssize_t index = -1, skipped
        if name == "env" or name == "episode" or name == "env_id" or name == "agent_id":
            return None
        mask = ZEROS(num_rows, BOOL)
        masks = puf_data(mask)
        for item in self.items:
            if item is not last:
                if item is not None and type(item) is not Schema:
                    return None
                position = None if item is None else (<Schema>item).index_of.get(name)
                index = -1 if position is None else position
                last = item
            memcpy(&head, cursor, HEAD_NBYTES)
            value = cursor + HEAD_NBYTES + (3 * sizeof(double) if head.flags & EPISODE else 0)
            cursor += head.nbytes
            if index < 0 or not (head.flags & OF_AGENT or self.agents_per_env == 1):
                continue
            if head.row >= num_rows:
                return None
            for skipped in range(index):
                value += nbytes_of(value)
            if pattern == NULL:
                pattern, pattern_nbytes = value, head_nbytes_of(value)
                values = column_like(value, num_rows)
                if values is None:
                    return None
                target, nbytes = puf_data(values), nbytes_of(value) - pattern_nbytes
            masks[head.row] = 1
            if is_bool(value) and is_bool(pattern):
                target[head.row] = <uint8_t>value[0] == TRUE
            elif same_bytes(value, pattern, pattern_nbytes):
                memcpy(target + head.row * nbytes, value + pattern_nbytes, nbytes)
            else:
                return None
        if values is None:
            values = ZEROS(num_rows, FLOAT64)
        return values, mask


def column_of(list infos, name, Py_ssize_t num_rows, id_key, dict row_of):
    """Return (values, mask) of one key of dicts, as ``Infos.column`` does; None if Python must do it.

    All values must be floats, ints or bools, or all NumPy scalars or arrays of one shape, of one dtype. id_key: the key
    of an info's environment or agent id. row_of: rows by id; None if the id is the row.
    """
    cdef PyObject *kind = NULL
    cdef object values = None, mask = ZEROS(num_rows, BOOL), info, value, row
    cdef char *target = NULL
    cdef char *masks = puf_data(mask)
    cdef Py_ssize_t index
    cdef size_t nbytes = 0
    cdef int64_t int_value
    cdef int overflow
    for info in infos:
        if type(info) is not dict or name not in <dict>info:
            continue
        value, row = (<dict>info)[name], (<dict>info).get(id_key)
        if type(row) is not int:
            continue
        if row_of is not None:
            row = row_of.get(row)
        if row is None or not 0 <= row < num_rows:
            continue
        index = row
        if values is None:
            kind = <PyObject *>Py_TYPE(value)
            values = column_for(value, num_rows)
            if values is None:
                return None
            target, nbytes = puf_data(values), values.nbytes // num_rows
        if <PyObject *>Py_TYPE(value) != kind:
            return None
        masks[index] = 1
        if PyFloat_CheckExact(value):
            (<double *>target)[index] = PyFloat_AS_DOUBLE(value)
        elif PyLong_CheckExact(value):
            int_value = PyLong_AsLongLongAndOverflow(value, &overflow)
            if overflow:
                return None
            (<int64_t *>target)[index] = int_value
        elif value is True or value is False:
            target[index] = value is True
        elif puf_is_array(value, NDARRAY):
            if puf_descr(value) != puf_descr(values) or not puf_is_plain(value) or not is_row(value, values):
                return None
            memcpy(target + index * nbytes, puf_data(value), nbytes)
        else:
            memcpy(target + index * nbytes, puf_scalar(value), nbytes)
    return (ZEROS(num_rows, FLOAT64) if values is None else values), mask


def keys_of(list infos):
    """Return the keys of all infos, as ``Infos.keys`` does; None if one is not a plain dict."""
    cdef dict keys = {}
    cdef object info
    for info in infos:
        if type(info) is not dict:
            return None
        for key in <dict>info:
            if key not in keys:
                keys[key] = None
    return list(keys)


cdef bint is_row(array, arrays) noexcept:
    """Return whether an array has the shape of one element of ``arrays`` along their first axis."""
    cdef int axis
    if puf_ndim(array) != puf_ndim(arrays) - 1:
        return False
    for axis in range(puf_ndim(array)):
        if puf_dim(array, axis) != puf_dim(arrays, axis + 1):
            return False
    return True


cdef object column_for(value, Py_ssize_t num_rows):
    """Return zeros for values like this one, with the dtype that Gymnasium chooses; None if Python must copy them."""
    cdef int index
    if PyFloat_CheckExact(value):
        return ZEROS(num_rows, FLOAT64)
    if PyLong_CheckExact(value):
        return ZEROS(num_rows, INT64)
    if value is True or value is False:
        return ZEROS(num_rows, BOOL)
    if puf_is_array(value, NDARRAY):
        for index in range(NUM_DTYPES):
            if DTYPES[index] == puf_descr(value):
                return ZEROS((num_rows, *value.shape), DTYPE_LIST[index])
        return None
    for index in range(1, NUM_DTYPES - 1):  # for Gymnasium numpy.bool_ is no number; complex: see write
        if TYPES[index] == <PyObject *>Py_TYPE(value):
            return ZEROS(num_rows, DTYPE_LIST[index])
    return None


cdef inline bint is_bool(const char *value) noexcept:
    return <uint8_t>value[0] == TRUE or <uint8_t>value[0] == FALSE


cdef bint same_bytes(const char *left, const char *right, size_t nbytes) noexcept:
    cdef size_t i
    for i in range(nbytes):
        if left[i] != right[i]:
            return False
    return True


cdef size_t head_nbytes_of(const char *value) noexcept:
    """Return the number of bytes before a value's data: its kind, and an array's dtype and shape."""
    if <uint8_t>value[0] == ARRAY:
        return 3 + <uint8_t>value[2] * sizeof(uint32_t)
    return 1


cdef size_t nbytes_of(const char *value) noexcept:
    """Return the size of a value in bytes."""
    cdef uint8_t kind = <uint8_t>value[0]
    cdef size_t nbytes
    cdef uint32_t length
    cdef int axis
    if kind >= SCALAR:
        return 1 + SIZES[kind - SCALAR]
    if kind == INT or kind == FLOAT:
        return 9
    if kind == TEXT:
        return 2 + <uint8_t>value[1]
    if kind == ARRAY:
        nbytes = SIZES[<uint8_t>value[1]]
        for axis in range(<uint8_t>value[2]):
            memcpy(&length, value + 3 + axis * sizeof(length), sizeof(length))
            nbytes *= length
        return head_nbytes_of(value) + nbytes
    if kind == NESTED:
        return nested_nbytes(value)
    return 1


cdef inline size_t nested_nbytes(const char *value) noexcept:
    cdef uint16_t nbytes
    memcpy(&nbytes, value + 1, sizeof(nbytes))
    return nbytes


cdef object shape_of(const char *array):
    cdef uint32_t length
    cdef int axis
    cdef list shape = []
    for axis in range(<uint8_t>array[2]):
        memcpy(&length, array + 3 + axis * sizeof(length), sizeof(length))
        shape.append(length)
    return tuple(shape)


cdef object column_like(const char *value, Py_ssize_t num_rows):
    """Return zeros for values of this kind, with the dtype that Gymnasium chooses; None if Python must copy them."""
    cdef uint8_t kind = <uint8_t>value[0]
    if kind == FLOAT:
        return ZEROS(num_rows, FLOAT64)
    if kind == INT:
        return ZEROS(num_rows, INT64)
    if kind == TRUE or kind == FALSE:
        return ZEROS(num_rows, BOOL)
    if kind == ARRAY:
        return ZEROS((num_rows, *shape_of(value)), DTYPE_LIST[<uint8_t>value[1]])
    if kind > SCALAR:  # for Gymnasium numpy.bool_ is no number
        return ZEROS(num_rows, DTYPE_LIST[kind - SCALAR])
    return None


cdef dict read_nested(const char *value):
    cdef const char *cursor = value + NESTED_HEAD
    cdef int index
    cdef dict nested = {}
    for index in range(<uint8_t>value[3]):
        key = read_value(&cursor)
        nested[key] = read_value(&cursor)
    return nested


cdef object read_value(const char **cursor):
    """Return the value at the cursor, and move the cursor past it."""
    cdef const char *value = cursor[0]
    cdef uint8_t kind = <uint8_t>value[0]
    cdef int64_t int_value
    cdef double float_value
    cdef size_t head_nbytes
    cursor[0] += nbytes_of(value)
    if kind == FLOAT:
        memcpy(&float_value, value + 1, sizeof(float_value))
        return float_value
    if kind == INT:
        memcpy(&int_value, value + 1, sizeof(int_value))
        return int_value
    if kind == TRUE:
        return True
    if kind == FALSE:
        return False
    if kind == TEXT:
        return PyUnicode_DecodeUTF8(value + 2, <uint8_t>value[1], NULL)
    if kind == ARRAY:
        array = EMPTY(shape_of(value), DTYPE_LIST[<uint8_t>value[1]])
        head_nbytes = head_nbytes_of(value)
        memcpy(puf_data(array), value + head_nbytes, nbytes_of(value) - head_nbytes)
        return array
    if kind == NESTED:
        return read_nested(value)
    if kind >= SCALAR:
        element = ELEMENTS[kind - SCALAR]
        memcpy(puf_data(element), value + 1, SIZES[kind - SCALAR])
        return element[0]
    return None
