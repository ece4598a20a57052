// A library that stands for the driver of a GPU in tests: the functions of libcuda.so.1 that the copy engine calls.
//
// It makes real copies, later, on a thread for each context, in an order between the streams that a seed decides. It is no GPU,
// saves no time, and shows nothing about the speed of one. Faults are read from the file LIBRARY.faults when cuInit is called:
//
//   devices N              the number of GPUs (1)
//   order SEED             the order between streams
//   fail CALL NTH CODE     the NTH call of a function, counted from 0, returns CODE and does nothing
//   async NTH CODE         the NTH transfer writes half of its bytes, and other ones; its context returns CODE from then on
//   hang NTH               the NTH transfer, and all of its stream behind it, never ends
//   late NTH               the NTH transfer waits until the context is queried 50 times, or destroyed
//   die NTH                the NTH call behind cuInit and all later ones return 999
//   slow_register MS       cuMemHostRegister takes MS milliseconds
//   slow_stop MS           cuCtxDestroy lets the thread run on for MS milliseconds, hung transfers too
//
// What a user of the driver must not do is written to LIBRARY.log, and the sums of transfers when a context is destroyed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201 };
enum { NOT_READY = 600, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, UNKNOWN = 999 };
enum { FAULTS_MAX = 32, STREAMS_MAX = 64, RANGES_MAX = 4096, QUERIES_OF_LATE = 50 };

enum kind { COPY_IN, COPY_OUT, FILL, EVENT };

struct context;

struct operation {
    struct operation *next;
    enum kind kind;
    unsigned char *to;
    const unsigned char *from;
    unsigned char value;
    size_t bytes;
    struct event *event;
    unsigned long number;
};

struct event {
    struct context *context;
    unsigned long recorded, ended;
};

struct stream {
    struct context *context;
    struct operation *first, **last;
};

struct context {
    pthread_t thread;
    pthread_cond_t changed;
    struct stream *streams[STREAMS_MAX];
    size_t stream_count;
    unsigned char *memory;
    size_t memory_bytes;
    unsigned long queries, in, out, fills;
    int is_stopping, sticky;
};

struct range {
    const unsigned char *start;
    size_t bytes;
};

struct fault {
    char what[16], call[40];
    long nth, code, seen;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[FAULTS_MAX];
static size_t fault_count;
static struct range ranges[RANGES_MAX];
static size_t range_count;
static struct context primary;
static int primary_uses;
static long devices = 1, slow_stop, slow_register, calls, die_at = -1;
static unsigned long order, operations, registrations;
static char library[4096];
static __thread struct context *current[16];
static __thread int depth;

static void note(const char *format, ...) {
    char path[4200];
    snprintf(path, sizeof path, "%s.log", library);
    FILE *log = fopen(path, "a");
    if (log == NULL) abort();
    va_list arguments;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}

static void read_faults(void) {
    Dl_info found;
    if (dladdr(&primary_uses, &found) == 0) abort();
    snprintf(library, sizeof library, "%s", found.dli_fname);
    char path[4200], line[128];
    snprintf(path, sizeof path, "%s.faults", library);
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    while (fgets(line, sizeof line, file) != NULL && fault_count < FAULTS_MAX) {
        struct fault fault = {0};
        long number;
        if (sscanf(line, "devices %ld", &number) == 1) devices = number;
        else if (sscanf(line, "order %ld", &number) == 1) order = (unsigned long)number;
        else if (sscanf(line, "slow_stop %ld", &number) == 1) slow_stop = number;
        else if (sscanf(line, "slow_register %ld", &number) == 1) slow_register = number;
        else if (sscanf(line, "die %ld", &number) == 1) die_at = number;
        else if (sscanf(line, "fail %39s %ld %ld", fault.call, &fault.nth, &fault.code) == 3) {
            strcpy(fault.what, "fail");
            faults[fault_count++] = fault;
        } else if (sscanf(line, "%15s %ld %ld", fault.what, &fault.nth, &fault.code) >= 2) faults[fault_count++] = fault;
        else note("a line of faults is not known: %s", line);
    }
    fclose(file);
}

// Returns the error of a call that is to fail. The lock is held.
static int planned(const char *call) {
    if (die_at >= 0 && calls++ >= die_at) return UNKNOWN;
    int error = SUCCESS;
    for (size_t nth = 0; nth < fault_count; nth++) {
        struct fault *fault = &faults[nth];
        int is_this = strcmp(fault->what, "fail") == 0 && strcmp(fault->call, call) == 0;
        if (is_this && fault->seen++ == fault->nth) error = (int)fault->code;
    }
    return error;
}

static struct fault *operation_fault(const char *what, unsigned long number) {
    for (size_t nth = 0; nth < fault_count; nth++) {
        if (strcmp(faults[nth].what, what) == 0 && faults[nth].nth == (long)number) return &faults[nth];
    }
    return NULL;
}

static int is_registered(const unsigned char *start, size_t bytes) {
    for (size_t nth = 0; nth < range_count; nth++) {
        if (start >= ranges[nth].start && start + bytes <= ranges[nth].start + ranges[nth].bytes) return 1;
    }
    return 0;
}

// Begins a call in the current context: returns its error, with the lock held.
static int begin(const char *call, struct context **context) {
    pthread_mutex_lock(&lock);
    *context = depth > 0 ? current[depth - 1] : NULL;
    int error = planned(call);
    if (error == SUCCESS && *context == NULL) error = INVALID_CONTEXT;
    if (error == SUCCESS) error = (*context)->sticky;
    return error;
}

static int end(int error) {
    pthread_mutex_unlock(&lock);
    return error;
}

// Does an operation of a stream. The lock is held, and released for the copy.
static void run(struct context *context, struct operation *operation) {
    struct fault *fault = operation->kind == EVENT ? NULL : operation_fault("async", operation->number);
    size_t bytes = fault == NULL ? operation->bytes : operation->bytes / 2;
    pthread_mutex_unlock(&lock);
    if (operation->kind == FILL) memset(operation->to, operation->value, bytes);
    else if (operation->kind != EVENT) memcpy(operation->to, operation->from, bytes);
    if (fault != NULL && bytes > 0) operation->to[bytes - 1] ^= 0xff;
    pthread_mutex_lock(&lock);
    if (operation->kind == EVENT) operation->event->ended++;
    if (fault != NULL) context->sticky = (int)fault->code;
    free(operation);
}

// Returns the next operation: of the stream that the seed chooses. NULL if there is none now.
static struct operation *next(struct context *context) {
    order = order * 6364136223846793005UL + 1442695040888963407UL;
    size_t first = (order >> 33) % (context->stream_count + 1);
    for (size_t nth = 0; nth < context->stream_count; nth++) {
        struct stream *stream = context->streams[(first + nth) % context->stream_count];
        struct operation *operation = stream->first;
        if (operation == NULL) continue;
        if (operation->kind != EVENT && operation_fault("hang", operation->number) != NULL &&
            (slow_stop == 0 || !context->is_stopping)) {
            continue;
        }
        if (operation->kind != EVENT && operation_fault("late", operation->number) != NULL &&
            context->queries < QUERIES_OF_LATE) {
            continue;
        }
        stream->first = operation->next;
        if (stream->first == NULL) stream->last = &stream->first;
        return operation;
    }
    return NULL;
}

static void *serve(void *argument) {
    struct context *context = argument;
    pthread_mutex_lock(&lock);
    while (context->is_stopping != 2) {
        struct operation *operation = context->sticky != SUCCESS ? NULL : next(context);
        if (operation != NULL) run(context, operation);
        else pthread_cond_wait(&context->changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int enqueue(struct stream *stream, struct operation operation) {
    struct operation *made = malloc(sizeof *made);
    if (made == NULL) abort();
    *made = operation;
    made->next = NULL;
    if (operation.kind != EVENT) made->number = operations++;
    *stream->last = made;
    stream->last = &made->next;
    pthread_cond_signal(&stream->context->changed);
    return SUCCESS;
}

int cuInit(unsigned flags) {
    pthread_mutex_lock(&lock);
    if (library[0] == 0) read_faults();
    int error = planned("cuInit");
    if (error == SUCCESS && flags != 0) error = INVALID_VALUE;
    if (error == SUCCESS && devices < 0) error = NO_DEVICE;
    calls = 0;
    return end(error);
}

int cuDriverGetVersion(int *version) {
    pthread_mutex_lock(&lock);
    *version = 12040;
    return end(planned("cuDriverGetVersion"));
}

int cuDeviceGetCount(int *count) {
    pthread_mutex_lock(&lock);
    *count = (int)devices;
    return end(planned("cuDeviceGetCount"));
}

int cuDeviceGet(int *device, int ordinal) {
    pthread_mutex_lock(&lock);
    *device = ordinal + 7;
    return end(planned("cuDeviceGet"));
}

int cuDeviceGetName(char *name, int bytes, int device) {
    pthread_mutex_lock(&lock);
    snprintf(name, (size_t)bytes, "software GPU %d", device - 7);
    return end(planned("cuDeviceGetName"));
}

int cuDeviceGetPCIBusId(char *name, int bytes, int device) {
    pthread_mutex_lock(&lock);
    snprintf(name, (size_t)bytes, "FFFF:%02X:00.0", device);
    return end(planned("cuDeviceGetPCIBusId"));
}

int cuDevicePrimaryCtxRetain(struct context **context, int device) {
    pthread_mutex_lock(&lock);
    (void)device;
    int error = planned("cuDevicePrimaryCtxRetain");
    if (error == SUCCESS) {
        primary_uses++;
        *context = &primary;
    }
    return end(error);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    pthread_mutex_lock(&lock);
    (void)device;
    if (--primary_uses < 0) note("a primary context is released too often");
    note("released: %zu ranges left of %lu", range_count, registrations);
    return end(planned("cuDevicePrimaryCtxRelease"));
}

int cuCtxCreate_v2(struct context **made, unsigned flags, int device) {
    pthread_mutex_lock(&lock);
    int error = planned("cuCtxCreate");
    if (flags != 0 || device < 7 || device >= 7 + devices) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    struct context *context = calloc(1, sizeof *context);
    if (context == NULL) abort();
    pthread_cond_init(&context->changed, NULL);
    if (pthread_create(&context->thread, NULL, serve, context) != 0) abort();
    *made = current[depth++] = context;
    return end(SUCCESS);
}

int cuCtxDestroy_v2(struct context *context) {
    pthread_mutex_lock(&lock);
    int error = planned("cuCtxDestroy");
    if (error == SUCCESS) error = context->sticky;
    context->is_stopping = 1;
    context->queries = QUERIES_OF_LATE;
    pthread_cond_signal(&context->changed);
    if (slow_stop > 0) {
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)slow_stop * 1000);
        pthread_mutex_lock(&lock);
    }
    context->is_stopping = 2;
    pthread_cond_signal(&context->changed);
    pthread_mutex_unlock(&lock);
    pthread_join(context->thread, NULL);
    pthread_mutex_lock(&lock);
    note("destroyed: in %lu out %lu fills %lu", context->in, context->out, context->fills);
    for (size_t nth = 0; nth < context->stream_count; nth++) {
        struct operation *operation = context->streams[nth]->first;
        while (operation != NULL) {
            struct operation *following = operation->next;
            free(operation);
            operation = following;
        }
        free(context->streams[nth]);
    }
    free(context->memory);
    free(context);
    return end(error);
}

int cuCtxPushCurrent_v2(struct context *context) {
    pthread_mutex_lock(&lock);
    int error = planned("cuCtxPushCurrent");
    if (error == SUCCESS && depth == 16) {
        note("contexts are pushed and not popped");
        error = INVALID_VALUE;
    }
    if (error == SUCCESS) current[depth++] = context;
    return end(error);
}

int cuCtxPopCurrent_v2(struct context **context) {
    pthread_mutex_lock(&lock);
    int error = planned("cuCtxPopCurrent");
    if (depth == 0) {
        note("a context is popped that was not pushed");
        return end(INVALID_CONTEXT);
    }
    *context = current[--depth];
    return end(error);
}

int cuStreamCreate(struct stream **made, unsigned flags) {
    struct context *context;
    int error = begin("cuStreamCreate", &context);
    if (error == SUCCESS && (flags != 1 || context->stream_count == STREAMS_MAX)) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) abort();
    stream->context = context;
    stream->last = &stream->first;
    context->streams[context->stream_count++] = *made = stream;
    return end(SUCCESS);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    struct context *context;
    int error = begin("cuMemAlloc", &context);
    if (error == SUCCESS && context->memory != NULL) error = OUT_OF_MEMORY;
    if (error != SUCCESS) return end(error);
    context->memory = malloc(bytes);
    if (context->memory == NULL) return end(OUT_OF_MEMORY);
    // What was not written is not zero.
    memset(context->memory, 0xA5, bytes);
    context->memory_bytes = bytes;
    *address = (uint64_t)(uintptr_t)context->memory;
    return end(SUCCESS);
}

int cuMemHostRegister_v2(void *start, size_t bytes, unsigned flags) {
    struct context *context;
    if (slow_register > 0) usleep((useconds_t)slow_register * 1000);
    int error = begin("cuMemHostRegister", &context);
    if (error == SUCCESS && (flags != 1 || bytes == 0 || range_count == RANGES_MAX)) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    const unsigned char *first = start;
    for (size_t nth = 0; nth < range_count; nth++) {
        if (first < ranges[nth].start + ranges[nth].bytes && ranges[nth].start < first + bytes) {
            return end(ALREADY_REGISTERED);
        }
    }
    ranges[range_count++] = (struct range){first, bytes};
    registrations++;
    return end(SUCCESS);
}

int cuMemHostUnregister(void *start) {
    struct context *context;
    int error = begin("cuMemHostUnregister", &context);
    if (error != SUCCESS) return end(error);
    for (size_t nth = 0; nth < range_count; nth++) {
        if (ranges[nth].start == start) {
            ranges[nth] = ranges[--range_count];
            return end(SUCCESS);
        }
    }
    note("a range is unregistered that was not registered");
    return end(NOT_REGISTERED);
}

// Checks a range of the memory of a context.
static int is_inside(const struct context *context, uint64_t address, size_t bytes) {
    uint64_t start = (uint64_t)(uintptr_t)context->memory;
    if (address >= start && address + bytes <= start + context->memory_bytes) return 1;
    note("a transfer of %zu bytes is outside of the GPU's memory", bytes);
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct stream *stream) {
    struct context *context;
    int error = begin("cuMemcpyHtoDAsync", &context);
    if (error == SUCCESS && !is_inside(context, to, bytes)) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    if (!is_registered(from, bytes)) note("%zu bytes are read that are not registered", bytes);
    context->in++;
    return end(enqueue(stream, (struct operation){.kind = COPY_IN, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes}));
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct stream *stream) {
    struct context *context;
    int error = begin("cuMemcpyDtoHAsync", &context);
    if (error == SUCCESS && !is_inside(context, from, bytes)) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    if (!is_registered(to, bytes)) note("%zu bytes are written that are not registered", bytes);
    context->out++;
    return end(enqueue(stream, (struct operation){.kind = COPY_OUT, .to = to, .from = (void *)(uintptr_t)from, .bytes = bytes}));
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, struct stream *stream) {
    struct context *context;
    int error = begin("cuMemsetD8Async", &context);
    if (error == SUCCESS && !is_inside(context, to, bytes)) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    context->fills++;
    return end(enqueue(stream, (struct operation){.kind = FILL, .to = (void *)(uintptr_t)to, .value = value, .bytes = bytes}));
}

int cuEventCreate(struct event **made, unsigned flags) {
    struct context *context;
    int error = begin("cuEventCreate", &context);
    if (error == SUCCESS && flags != 2) error = INVALID_VALUE;
    if (error != SUCCESS) return end(error);
    // Freed with the process: no test makes many.
    *made = calloc(1, sizeof **made);
    if (*made == NULL) abort();
    (*made)->context = context;
    return end(SUCCESS);
}

int cuEventRecord(struct event *event, struct stream *stream) {
    struct context *context;
    int error = begin("cuEventRecord", &context);
    if (error != SUCCESS) return end(error);
    event->recorded++;
    return end(enqueue(stream, (struct operation){.kind = EVENT, .event = event}));
}

int cuEventQuery(struct event *event) {
    struct context *context;
    int error = begin("cuEventQuery", &context);
    if (error != SUCCESS) return end(error);
    if (++context->queries == QUERIES_OF_LATE) pthread_cond_signal(&context->changed);
    return end(event->ended == event->recorded ? SUCCESS : NOT_READY);
}

int cuGetErrorName(int error, const char **name) {
    switch (error) {
        case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return SUCCESS;
        case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
        case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return SUCCESS;
        case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return SUCCESS;
        case ALREADY_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; return SUCCESS;
        case NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; return SUCCESS;
        case UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; return SUCCESS;
        default: *name = NULL; return INVALID_VALUE;
    }
}
