/* The work of `columns.py` that visits every record, for the stable ABI of Python 3.11 and later.
 *
 * Every function takes encoded columns (bytes objects; the format stands in proto/millstream/frame/v1/frame.proto) and
 * does what the Python function that calls it would do, to the byte. It serves columns as our own encoders write them:
 * fields in order, each once, offsets that begin at 0, never fall and end where the data do. For anything else it
 * returns None, without an exception, and the Python code decides: so damaged and unusual columns have one judge and
 * one wording.
 *
 * Nothing here keeps a reference, knows frames, or releases the GIL.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The same numbers as in columns.py. */
enum { BYTES, LISTS, HEADERS };

/* Above this, Python's integers decide what is too large. */
#define SIZE_MAX_TAKEN ((size_t)INT32_MAX)
#define ANY SIZE_MAX

enum { FIELD_1 = 0x0A, FIELD_2 = 0x12, FIELD_3 = 0x1A };

typedef struct {
    const uint8_t *at;
    size_t size;
} Span;

/* What a column was found to hold. Entry e has the items first_of(e) to first_of(e + 1). */
typedef struct {
    int kind;
    int empty;              /* an absent column: no entry has items */
    size_t entries;
    size_t items;
    const uint8_t *starts;  /* entries + 1 numbers; NULL: each entry has one item */
    const uint8_t *offsets; /* items + 1 numbers; of bytes and lists */
    const uint8_t *data;
    size_t *names;          /* items + 1 places behind `data`, as encoded fields; of headers */
    size_t *values;
} Column;

/* Entries `start` to `stop`, exclusive, of a column. */
typedef struct {
    const Column *source;
    size_t start, stop;
} Run;

/* ---- numbers ---- */

static uint32_t number_at(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint8_t *put_number(uint8_t *at, uint32_t number) {
    at[0] = (uint8_t)number;
    at[1] = (uint8_t)(number >> 8);
    at[2] = (uint8_t)(number >> 16);
    at[3] = (uint8_t)(number >> 24);
    return at + 4;
}

static int64_t time_at(const uint8_t *at) {
    return (int64_t)((uint64_t)number_at(at) | (uint64_t)number_at(at + 4) << 32);
}

static size_t varint_size(size_t number) {
    size_t size = 1;
    while (number >>= 7) size++;
    return size;
}

static size_t field_size(size_t content) {
    return 1 + varint_size(content) + content;
}

static uint8_t *put_header(uint8_t *at, uint8_t tag, size_t content) {
    *at++ = tag;
    for (; content > 0x7F; content >>= 7) *at++ = (uint8_t)(content | 0x80);
    *at++ = (uint8_t)content;
    return at;
}

static uint8_t *put_bytes(uint8_t *at, const uint8_t *from, size_t size) {
    if (size) memcpy(at, from, size);
    return at + size;
}

/* ---- reading a column ---- */

/* The content of a field, if `rest` begins with it; then `rest` is what is behind it. 0: it does not, or it is not
 * whole, or its length takes more bytes than it needs. */
static int take_field(Span *rest, uint8_t tag, Span *content) {
    uint64_t length = 0;
    size_t used = 1;
    if (rest->size < 2 || rest->at[0] != tag) return 0;
    for (int shift = 0;; shift += 7) {
        if (used == rest->size || shift > 28) return 0;
        uint8_t byte = rest->at[used++];
        length |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            if (shift && !byte) return 0;
            break;
        }
    }
    if (length > rest->size - used) return 0;
    content->at = rest->at + used;
    content->size = (size_t)length;
    rest->at += used + content->size;
    rest->size -= used + content->size;
    return 1;
}

/* Whether packed numbers begin at 0, never fall, and end at `last`. */
static int is_rising(Span numbers, size_t last) {
    if (numbers.size < 4 || numbers.size % 4) return 0;
    size_t count = numbers.size / 4;
    int falls = 0;
    for (size_t n = 1; n < count; n++) falls |= number_at(numbers.at + 4 * n) < number_at(numbers.at + 4 * n - 4);
    return !falls && number_at(numbers.at) == 0 && number_at(numbers.at + numbers.size - 4) == last;
}

static int is_ascii(const uint8_t *at, size_t size) {
    uint8_t all = 0;
    for (size_t n = 0; n < size; n++) all |= at[n];
    return !(all & 0x80);
}

/* A whole `BytesColumn`. */
static int read_items(Span rest, Column *column) {
    Span offsets, data = {rest.at, 0};
    if (!take_field(&rest, FIELD_1, &offsets)) return 0;
    if (rest.size && !take_field(&rest, FIELD_2, &data)) return 0;
    if (rest.size || !is_rising(offsets, data.size)) return 0;
    column->items = offsets.size / 4 - 1;
    column->offsets = offsets.at;
    column->data = data.at;
    return 1;
}

static int read_lists(Span rest, Column *column) {
    Span starts, items;
    int has_starts = take_field(&rest, FIELD_1, &starts);
    if (take_field(&rest, FIELD_2, &items) && !read_items(items, column)) return 0;
    if (rest.size) return 0;
    column->entries = column->items;
    if (has_starts) {
        if (!is_rising(starts, column->items)) return 0;
        column->entries = starts.size / 4 - 1;
        column->starts = starts.at;
    }
    return 1;
}

/* How many fields of a tag come next; their places into `places`, unless that is NULL. */
static size_t fields_of(Span *rest, uint8_t tag, const uint8_t *begin, size_t *places) {
    size_t count = 0;
    Span content;
    for (;;) {
        if (places) places[count] = (size_t)(rest->at - begin);
        if (!take_field(rest, tag, &content)) return count;
        /* Whether a name is UTF-8 is for Python to see. */
        if (tag == FIELD_2 && !is_ascii(content.at, content.size)) return ANY;
        count++;
    }
}

static int read_headers(Span rest, Column *column) {
    Span starts;
    if (!take_field(&rest, FIELD_1, &starts)) return 0;
    Span names = rest;
    size_t count = fields_of(&rest, FIELD_2, rest.at, NULL);
    Span values = rest;
    if (count == ANY || fields_of(&rest, FIELD_3, rest.at, NULL) != count || rest.size) return 0;
    if (!is_rising(starts, count)) return 0;
    column->names = PyMem_Malloc(2 * (count + 1) * sizeof(size_t));
    if (!column->names) {
        PyErr_NoMemory();
        return -1;
    }
    column->values = column->names + count + 1;
    column->data = names.at;
    fields_of(&names, FIELD_2, column->data, column->names);
    fields_of(&values, FIELD_3, column->data, column->values);
    column->entries = starts.size / 4 - 1;
    column->items = count;
    column->starts = starts.at;
    return 1;
}

/* 1: `column` is what the object holds, for so many records, and has to be closed; 0: Python decides; -1: an exception
 * is set. An empty column has no entries by itself, so `records` has to be given for it. */
static int open_column(int kind, PyObject *object, size_t records, Column *column) {
    memset(column, 0, sizeof *column);
    column->kind = kind;
    if (!PyBytes_Check(object)) return 0;
    Span whole = {(const uint8_t *)PyBytes_AsString(object), (size_t)PyBytes_Size(object)};
    if (whole.size > SIZE_MAX_TAKEN) return 0;
    int read = 0;
    if (!whole.size && kind != BYTES && records != ANY) {
        column->empty = read = 1;
        column->entries = records;
    } else if (whole.size && kind == BYTES) {
        read = read_items(whole, column);
        column->entries = column->items;
    } else if (whole.size) {
        read = kind == LISTS ? read_lists(whole, column) : read_headers(whole, column);
    }
    if (read == 1 && records != ANY && column->entries != records) {
        PyMem_Free(column->names);
        return 0;
    }
    return read;
}

static void close_column(Column *column) {
    PyMem_Free(column->names);
}

static size_t first_of(const Column *column, size_t entry) {
    if (column->empty) return 0;
    return column->starts ? number_at(column->starts + 4 * entry) : entry;
}

static size_t bytes_until(const Column *column, size_t item) {
    return number_at(column->offsets + 4 * item);
}

/* ---- writing a column ---- */

typedef struct {
    size_t entries, items;
    size_t names, values; /* bytes; what is not a header counts as a value */
    int one_each;
} Totals;

static void add_run(Totals *totals, Run run) {
    const Column *source = run.source;
    size_t begin = first_of(source, run.start), end = first_of(source, run.stop);
    totals->entries += run.stop - run.start;
    totals->items += end - begin;
    if (source->empty || source->starts)
        for (size_t entry = run.start; entry < run.stop && totals->one_each; entry++)
            totals->one_each = first_of(source, entry + 1) - first_of(source, entry) == 1;
    if (begin == end) return;
    if (source->kind == HEADERS) {
        totals->names += source->names[end] - source->names[begin];
        totals->values += source->values[end] - source->values[begin];
    } else {
        totals->values += bytes_until(source, end) - bytes_until(source, begin);
    }
}

static uint8_t *put_starts(uint8_t *at, const Run *runs, size_t count, size_t entries) {
    at = put_header(at, FIELD_1, 4 * (entries + 1));
    size_t items = 0;
    at = put_number(at, 0);
    for (size_t n = 0; n < count; n++) {
        size_t begin = first_of(runs[n].source, runs[n].start);
        for (size_t entry = runs[n].start; entry < runs[n].stop; entry++)
            at = put_number(at, (uint32_t)(items + first_of(runs[n].source, entry + 1) - begin));
        items += first_of(runs[n].source, runs[n].stop) - begin;
    }
    return at;
}

static uint8_t *put_items(uint8_t *at, const Run *runs, size_t count, const Totals *totals) {
    at = put_header(at, FIELD_1, 4 * (totals->items + 1));
    uint8_t *data = at + 4 * (totals->items + 1);
    if (totals->values) data = put_header(data, FIELD_2, totals->values);
    size_t size = 0;
    at = put_number(at, 0);
    for (size_t n = 0; n < count; n++) {
        const Column *source = runs[n].source;
        size_t begin = first_of(source, runs[n].start), end = first_of(source, runs[n].stop);
        if (begin == end) continue;
        size_t from = bytes_until(source, begin);
        for (size_t item = begin; item < end; item++)
            at = put_number(at, (uint32_t)(size + bytes_until(source, item + 1) - from));
        size_t length = bytes_until(source, end) - from;
        data = put_bytes(data, source->data + from, length);
        size += length;
    }
    return data;
}

static uint8_t *put_headers(uint8_t *at, const Run *runs, size_t count, int values) {
    for (size_t n = 0; n < count; n++) {
        const Column *source = runs[n].source;
        size_t begin = first_of(source, runs[n].start), end = first_of(source, runs[n].stop);
        if (begin == end) continue;
        const size_t *places = values ? source->values : source->names;
        at = put_bytes(at, source->data + places[begin], places[end] - places[begin]);
    }
    return at;
}

/* A column of what the runs have, in their order; None when it is too large. */
static PyObject *column_of(int kind, const Run *runs, size_t count) {
    Totals totals = {0, 0, 0, 0, 1};
    for (size_t n = 0; n < count; n++) add_run(&totals, runs[n]);
    if (totals.entries > SIZE_MAX_TAKEN / 8 || totals.items > SIZE_MAX_TAKEN / 8 ||
        totals.names > SIZE_MAX_TAKEN / 2 || totals.values > SIZE_MAX_TAKEN / 2)
        Py_RETURN_NONE;
    if (kind != BYTES && !totals.items) return PyBytes_FromStringAndSize(NULL, 0);
    size_t starts = kind == HEADERS || (kind == LISTS && !totals.one_each) ? field_size(4 * (totals.entries + 1)) : 0;
    size_t items = field_size(4 * (totals.items + 1)) + (totals.values ? field_size(totals.values) : 0);
    size_t size = starts + (kind == HEADERS ? totals.names + totals.values : kind == LISTS ? field_size(items) : items);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!made) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(made);
    if (starts) at = put_starts(at, runs, count, totals.entries);
    if (kind == HEADERS) {
        at = put_headers(at, runs, count, 0);
        put_headers(at, runs, count, 1);
    } else {
        if (kind == LISTS) at = put_header(at, FIELD_2, items);
        put_items(at, runs, count, &totals);
    }
    return made;
}

/* ---- what Python calls ---- */

/* slice(kind, column, start, stop): entries `start` to `stop`, exclusive, as a column. */
static PyObject *slice(PyObject *module, PyObject *arguments) {
    int kind;
    PyObject *object;
    Py_ssize_t start, stop;
    Column column;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iOnn", &kind, &object, &start, &stop)) return NULL;
    int opened = open_column(kind, object, ANY, &column);
    if (opened < 0) return NULL;
    if (!opened) Py_RETURN_NONE;
    PyObject *made = Py_None;
    if (0 <= start && start < stop && (size_t)stop <= column.entries) {
        Run run = {&column, (size_t)start, (size_t)stop};
        made = column_of(kind, &run, 1);
    } else {
        Py_INCREF(made);
    }
    close_column(&column);
    return made;
}

/* The runs of a group of indexes (packed numbers in the order of this machine's bytes), neighbours in one. `count`: how
 * many there are. 0: an index is too large. */
static int runs_of(const Column *column, const uint32_t *indexes, size_t size, Run *runs, size_t *count) {
    size_t found = 0;
    for (size_t n = 0; n < size; n++) {
        size_t index = indexes[n];
        if (index >= column->entries) return 0;
        if (found && runs[found - 1].stop == index) {
            runs[found - 1].stop++;
        } else {
            runs[found++] = (Run){column, index, index + 1};
        }
    }
    *count = found;
    return 1;
}

/* A list of columns, one for each group; None when one of them is for Python to make. */
static PyObject *picked(const Column *column, PyObject *groups) {
    Py_ssize_t count = PyList_Size(groups);
    PyObject *made = PyList_New(count);
    if (!made) return NULL;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *group = PyList_GetItem(groups, n), *one = NULL;
        size_t size = PyBytes_Check(group) ? (size_t)PyBytes_Size(group) / sizeof(uint32_t) : 0, found = 0;
        Run *runs = PyMem_Malloc((size + 1) * sizeof(Run));
        uint32_t *indexes = PyMem_Malloc((size + 1) * sizeof(uint32_t));
        if (!runs || !indexes) {
            PyErr_NoMemory();
        } else if (!PyBytes_Check(group) || (size_t)PyBytes_Size(group) % sizeof(uint32_t)) {
            one = Py_None;
            Py_INCREF(one);
        } else {
            memcpy(indexes, PyBytes_AsString(group), size * sizeof(uint32_t));
            if (runs_of(column, indexes, size, runs, &found)) {
                one = column_of(column->kind, runs, found);
            } else {
                one = Py_None;
                Py_INCREF(one);
            }
        }
        PyMem_Free(runs);
        PyMem_Free(indexes);
        if (!one || one == Py_None) {
            Py_DECREF(made);
            return one;
        }
        PyList_SetItem(made, n, one);
    }
    return made;
}

/* pick(kind, column, records, groups): for each group of indexes a column of the entries there, in that order. */
static PyObject *pick(PyObject *module, PyObject *arguments) {
    int kind;
    PyObject *object, *groups;
    Py_ssize_t records;
    Column column;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iOnO!", &kind, &object, &records, &PyList_Type, &groups)) return NULL;
    int opened = open_column(kind, object, records < 0 ? ANY : (size_t)records, &column);
    if (opened < 0) return NULL;
    if (!opened) Py_RETURN_NONE;
    PyObject *made = picked(&column, groups);
    close_column(&column);
    return made;
}

/* join(kind, columns, counts): one column of the entries of all, in order. `counts`: the entries of each; of bytes, they
 * are -1 and not looked at. */
static PyObject *join(PyObject *module, PyObject *arguments) {
    int kind, opened = 1;
    PyObject *objects, *counts, *made = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iO!O!", &kind, &PyList_Type, &objects, &PyList_Type, &counts)) return NULL;
    Py_ssize_t count = PyList_Size(objects), open = 0;
    if (PyList_Size(counts) != count) Py_RETURN_NONE;
    Column *columns = PyMem_Malloc(((size_t)count + 1) * sizeof(Column));
    Run *runs = PyMem_Malloc(((size_t)count + 1) * sizeof(Run));
    if (!columns || !runs) {
        PyErr_NoMemory();
        opened = -1;
    }
    while (opened == 1 && open < count) {
        Py_ssize_t records = PyLong_AsSsize_t(PyList_GetItem(counts, open));
        if (records == -1 && PyErr_Occurred()) {
            opened = -1;
            break;
        }
        Column *column = columns + open;
        opened = open_column(kind, PyList_GetItem(objects, open), records < 0 ? ANY : (size_t)records, column);
        if (opened == 1) runs[open++] = (Run){column, 0, column->entries};
    }
    if (opened == 1) {
        made = column_of(kind, runs, (size_t)count);
    } else if (!opened) {
        made = Py_None;
        Py_INCREF(made);
    }
    while (open) close_column(columns + --open);
    PyMem_Free(columns);
    PyMem_Free(runs);
    return made;
}

/* check(kind, column, records, text): how many items a column has that can be read, for so many records. */
static PyObject *check(PyObject *module, PyObject *arguments) {
    int kind, text;
    PyObject *object;
    Py_ssize_t records;
    Column column;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iOnp", &kind, &object, &records, &text)) return NULL;
    if (records < 0) Py_RETURN_NONE;
    int opened = open_column(kind, object, (size_t)records, &column);
    if (opened < 0) return NULL;
    if (!opened) Py_RETURN_NONE;
    int good = !text || kind == HEADERS || !column.items || is_ascii(column.data, bytes_until(&column, column.items));
    size_t items = column.items;
    close_column(&column);
    if (!good) Py_RETURN_NONE;
    return PyLong_FromSize_t(items);
}

/* unpack(column): a list of the items of a column of bytes. */
static PyObject *unpack(PyObject *module, PyObject *object) {
    Column column;
    (void)module;
    int opened = open_column(BYTES, object, ANY, &column);
    if (opened < 0) return NULL;
    if (!opened) Py_RETURN_NONE;
    PyObject *made = PyList_New((Py_ssize_t)column.items);
    for (size_t item = 0; made && item < column.items; item++) {
        size_t from = bytes_until(&column, item);
        Py_ssize_t size = (Py_ssize_t)(bytes_until(&column, item + 1) - from);
        PyObject *one = PyBytes_FromStringAndSize((const char *)column.data + from, size);
        if (one) {
            PyList_SetItem(made, (Py_ssize_t)item, one);
        } else {
            Py_DECREF(made);
            made = NULL;
        }
    }
    close_column(&column);
    return made;
}

/* pack(items): a column of bytes of a list of bytes objects. */
static PyObject *pack(PyObject *module, PyObject *items) {
    (void)module;
    if (!PyList_Check(items)) Py_RETURN_NONE;
    Py_ssize_t count = PyList_Size(items);
    size_t size = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *item = PyList_GetItem(items, n);
        if (!PyBytes_Check(item)) Py_RETURN_NONE;
        size += (size_t)PyBytes_Size(item);
        if (size > SIZE_MAX_TAKEN / 2) Py_RETURN_NONE;
    }
    if ((size_t)count > SIZE_MAX_TAKEN / 8) Py_RETURN_NONE;
    size_t numbers = 4 * ((size_t)count + 1);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(field_size(numbers) + (size ? field_size(size) : 0)));
    if (!made) return NULL;
    uint8_t *at = put_header((uint8_t *)PyBytes_AsString(made), FIELD_1, numbers);
    uint8_t *data = at + numbers;
    if (size) data = put_header(data, FIELD_2, size);
    size_t end = 0;
    at = put_number(at, 0);
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *item = PyList_GetItem(items, n);
        size_t length = (size_t)PyBytes_Size(item);
        data = put_bytes(data, (const uint8_t *)PyBytes_AsString(item), length);
        at = put_number(at, (uint32_t)(end += length));
    }
    return made;
}

static uint32_t crc_table[256];

static void make_crc_table(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[n] = crc;
    }
}

static uint32_t crc_step(uint32_t crc, uint8_t byte) {
    return crc >> 8 ^ crc_table[(crc ^ byte) & 0xFF];
}

/* CRC-32 (IEEE) of the items of an entry, joined by 0x1F. */
static uint32_t hash_of(const Column *column, size_t begin, size_t end) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t item = begin; item < end; item++) {
        if (item > begin) crc = crc_step(crc, 0x1F);
        const uint8_t *at = column->data + bytes_until(column, item), *stop = column->data + bytes_until(column, item + 1);
        while (at < stop) crc = crc_step(crc, *at++);
    }
    return ~crc;
}

/* partition(column, records, partitions, keyless): for each partition the indexes of its records, packed in the order of
 * this machine's bytes. Records without items are in the partition `keyless`. */
static PyObject *partition(PyObject *module, PyObject *arguments) {
    PyObject *object, *made = NULL;
    Py_ssize_t records, partitions, keyless;
    Column column;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Onnn", &object, &records, &partitions, &keyless)) return NULL;
    if (records < 0 || records > INT32_MAX || partitions < 1 || partitions > UINT16_MAX) Py_RETURN_NONE;
    if (keyless < 0 || keyless >= partitions) Py_RETURN_NONE;
    int opened = open_column(LISTS, object, (size_t)records, &column);
    if (opened < 0) return NULL;
    if (!opened) Py_RETURN_NONE;
    uint16_t *chosen = PyMem_Malloc(((size_t)records + 1) * sizeof *chosen);
    size_t *counts = PyMem_Calloc((size_t)partitions, sizeof *counts);
    uint8_t **ends = PyMem_Calloc((size_t)partitions, sizeof *ends);
    if (!chosen || !counts || !ends) {
        PyErr_NoMemory();
        goto done;
    }
    for (size_t n = 0; n < (size_t)records; n++) {
        size_t begin = first_of(&column, n), end = first_of(&column, n + 1);
        chosen[n] = (uint16_t)(begin < end ? hash_of(&column, begin, end) % (uint32_t)partitions : (uint32_t)keyless);
        counts[chosen[n]]++;
    }
    made = PyList_New(partitions);
    for (Py_ssize_t n = 0; made && n < partitions; n++) {
        PyObject *group = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(counts[n] * sizeof(uint32_t)));
        if (!group) {
            Py_DECREF(made);
            made = NULL;
            break;
        }
        ends[n] = (uint8_t *)PyBytes_AsString(group);
        PyList_SetItem(made, n, group);
    }
    for (uint32_t n = 0; made && n < (uint32_t)records; n++) {
        memcpy(ends[chosen[n]], &n, sizeof n);
        ends[chosen[n]] += sizeof n;
    }
done:
    PyMem_Free(chosen);
    PyMem_Free(counts);
    PyMem_Free(ends);
    close_column(&column);
    return made;
}

/* The items of an entry, joined by 0x1F; NULL with an exception, or without one if an item has 0x1E or 0x1F, or if the
 * only item is empty: such a key is written in another way. */
static PyObject *joined(const Column *column, size_t begin, size_t end) {
    size_t size = begin < end ? bytes_until(column, end) - bytes_until(column, begin) + (end - begin - 1) : 0;
    if (end - begin == 1 && !size) return NULL;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!made) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(made);
    for (size_t item = begin; item < end; item++) {
        if (item > begin) *at++ = 0x1F;
        const uint8_t *from = column->data + bytes_until(column, item), *stop = column->data + bytes_until(column, item + 1);
        for (; from < stop; from++) {
            if (*from == 0x1E || *from == 0x1F) {
                Py_DECREF(made);
                return NULL;
            }
            *at++ = *from;
        }
    }
    return made;
}

/* distinct(column, records): the keys of the records, each once, and for each record which of them it has, packed in the
 * order of this machine's bytes. */
static PyObject *distinct(PyObject *module, PyObject *arguments) {
    PyObject *object, *found = NULL, *keys = NULL, *numbers = NULL, *made = NULL;
    Py_ssize_t records;
    Column column;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "On", &object, &records)) return NULL;
    if (records < 0 || records > INT32_MAX) Py_RETURN_NONE;
    int opened = open_column(LISTS, object, (size_t)records, &column);
    if (opened < 0) return NULL;
    if (!opened) Py_RETURN_NONE;
    found = PyDict_New();
    keys = PyList_New(0);
    numbers = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((size_t)records * sizeof(uint32_t)));
    if (!found || !keys || !numbers) goto done;
    uint8_t *at = (uint8_t *)PyBytes_AsString(numbers);
    for (size_t n = 0; n < (size_t)records; n++, at += sizeof(uint32_t)) {
        PyObject *key = joined(&column, first_of(&column, n), first_of(&column, n + 1));
        if (!key) {
            if (!PyErr_Occurred()) made = Py_NewRef(Py_None);
            goto done;
        }
        PyObject *number = PyDict_GetItemWithError(found, key);
        uint32_t place = number ? (uint32_t)PyLong_AsUnsignedLong(number) : (uint32_t)PyList_Size(keys);
        int failed = !number && PyErr_Occurred();
        if (!number && !failed) {
            number = PyLong_FromUnsignedLong(place);
            failed = !number || PyDict_SetItem(found, key, number) || PyList_Append(keys, key);
            Py_XDECREF(number);
        }
        Py_DECREF(key);
        if (failed) goto done;
        memcpy(at, &place, sizeof place);
    }
    made = PyTuple_Pack(2, keys, numbers);
done:
    Py_XDECREF(found);
    Py_XDECREF(keys);
    Py_XDECREF(numbers);
    close_column(&column);
    return made;
}

/* bounds(times): the smallest and the largest of packed times, of which there has to be one. */
static PyObject *bounds(PyObject *module, PyObject *object) {
    (void)module;
    if (!PyBytes_Check(object) || !PyBytes_Size(object) || PyBytes_Size(object) % 8) Py_RETURN_NONE;
    const uint8_t *at = (const uint8_t *)PyBytes_AsString(object), *end = at + PyBytes_Size(object);
    int64_t smallest = time_at(at), largest = smallest;
    for (at += 8; at < end; at += 8) {
        int64_t time = time_at(at);
        if (time < smallest) smallest = time;
        if (time > largest) largest = time;
    }
    return Py_BuildValue("LL", (long long)smallest, (long long)largest);
}

/* pick_times(times, groups): for each group of indexes the packed times there. */
static PyObject *pick_times(PyObject *module, PyObject *arguments) {
    PyObject *object, *groups;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO!", &object, &PyList_Type, &groups)) return NULL;
    if (!PyBytes_Check(object) || PyBytes_Size(object) % 8) Py_RETURN_NONE;
    const char *times = PyBytes_AsString(object);
    size_t records = (size_t)PyBytes_Size(object) / 8;
    Py_ssize_t count = PyList_Size(groups);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t n = 0; made && n < count; n++) {
        PyObject *group = PyList_GetItem(groups, n);
        if (!PyBytes_Check(group) || (size_t)PyBytes_Size(group) % sizeof(uint32_t)) goto decline;
        size_t size = (size_t)PyBytes_Size(group) / sizeof(uint32_t);
        const char *indexes = PyBytes_AsString(group);
        PyObject *one = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(8 * size));
        if (!one) {
            Py_DECREF(made);
            return NULL;
        }
        PyList_SetItem(made, n, one);
        char *at = PyBytes_AsString(one);
        for (size_t place = 0; place < size; place++, at += 8) {
            uint32_t index;
            memcpy(&index, indexes + place * sizeof index, sizeof index);
            if (index >= records) goto decline;
            memcpy(at, times + 8 * (size_t)index, 8);
        }
    }
    return made;
decline:
    Py_DECREF(made);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"slice", slice, METH_VARARGS, NULL},
    {"pick", pick, METH_VARARGS, NULL},
    {"join", join, METH_VARARGS, NULL},
    {"check", check, METH_VARARGS, NULL},
    {"unpack", unpack, METH_O, NULL},
    {"pack", pack, METH_O, NULL},
    {"partition", partition, METH_VARARGS, NULL},
    {"distinct", distinct, METH_VARARGS, NULL},
    {"bounds", bounds, METH_O, NULL},
    {"pick_times", pick_times, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "millstream_udf._columns", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__columns(void) {
    make_crc_table();
    return PyModuleDef_Init(&definition);
}
