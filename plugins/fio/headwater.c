/*
 * fio's engine for every device that Headwater opens by a URL.
 *
 * Input: fio's requests, with buffers in memory of the device. Output: their completions. Each job has its own queue and
 * handle; jobs that are threads of one process (thread=1) share the device when they name the same URL. No data is copied.
 *
 * Built by `make fio` against the source of the installed fio, because engines use fio's structs: both versions must be the
 * same, and fio reports if they are not.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include "headwater.h"

struct options {
	void *pad; /* an option must not be at offset 0 */
	char *url;
	unsigned int completion;
	unsigned int period_us;
	unsigned int cache_mib;
	unsigned int scheduler;
};

static struct fio_option options[] = {
	{
		.name = "url",
		.lname = "URL of the device",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct options, url),
		.help = "null:1G, io-uring:/dev/nvme0n1, nvme-ng:/dev/ng0n1, vfio:0000:00:04.0, attach:PATH, nvme-tcp://..., with ?ns=N",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "completion",
		.lname = "Completion method",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct options, completion),
		.def = "poll",
		.posval = {
			{ .ival = "poll", .oval = HW_COMPLETION_POLL, .help = "by the job, polling" },
			{ .ival = "thread", .oval = HW_COMPLETION_THREAD, .help = "by a thread that polls with a period" },
			{ .ival = "hybrid", .oval = HW_COMPLETION_HYBRID, .help = "by the job, sleeping first, then polling" },
			{ .ival = "interrupt", .oval = HW_COMPLETION_INTERRUPT, .help = "by the job, sleeping until an interrupt" },
		},
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "period_us",
		.lname = "Polling period in microseconds",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct options, period_us),
		.def = "0",
		.help = "Period of the polling thread; 0 adapts it to request size and latency",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "cache_mib",
		.lname = "Block cache in MiB",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct options, cache_mib),
		.def = "0",
		.help = "Block cache of each job, 0 for none; with a cache, jobs must not share bytes of the device",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "scheduler",
		.lname = "I/O scheduler",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct options, scheduler),
		.def = "fifo",
		.posval = {
			{ .ival = "fifo", .oval = HW_SCHEDULER_FIFO, .help = "in order of submission" },
			{ .ival = "deadline", .oval = HW_SCHEDULER_DEADLINE, .help = "by deadline" },
			{ .ival = "share", .oval = HW_SCHEDULER_SHARE, .help = "by weight" },
			{ .ival = "priority", .oval = HW_SCHEDULER_PRIORITY, .help = "by priority" },
		},
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

/* An open device of this process, shared by the jobs that use it. */
struct shared_device {
	struct shared_device *next;
	char *url;
	unsigned int jobs;
	hw_device *device;
};

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_device *devices;

struct job {
	struct shared_device *shared;
	hw_queue *queue;
	hw_handle *handle;
	hw_aio_event *events;
	void *memory;
};

static void complain(const char *what)
{
	log_err("headwater: %s: %s\n", what, hw_last_error());
}

static const char *url_of(struct thread_data *td)
{
	struct options *o = td->eo;

	if (!o->url)
		log_err("headwater: no device: name it with url=, for example url=null:1G\n");
	return o->url;
}

static struct shared_device *take_device(const char *url)
{
	struct shared_device *found;

	pthread_mutex_lock(&devices_lock);
	for (found = devices; found && strcmp(found->url, url); found = found->next)
		;
	if (!found) {
		found = calloc(1, sizeof(*found));
		found->url = strdup(url);
		if (hw_open(url, &found->device) != HW_CODE_OK) {
			complain(url);
			free(found->url);
			free(found);
			found = NULL;
		} else {
			found->next = devices;
			devices = found;
		}
	}
	if (found)
		found->jobs++;
	pthread_mutex_unlock(&devices_lock);
	return found;
}

static void give_device(struct shared_device *shared)
{
	struct shared_device **link;

	pthread_mutex_lock(&devices_lock);
	if (--shared->jobs == 0) {
		for (link = &devices; *link != shared; link = &(*link)->next)
			;
		*link = shared->next;
		if (hw_close(shared->device) != HW_CODE_OK)
			complain(shared->url);
		free(shared->url);
		free(shared);
	}
	pthread_mutex_unlock(&devices_lock);
}

/* Runs before jobs fork: opens the device for its size and closes it again, because its memory does not survive a fork. */
static int headwater_setup(struct thread_data *td)
{
	hw_facts facts = { .struct_bytes = sizeof(facts) };
	struct shared_device *shared;
	const char *url = url_of(td);
	struct fio_file *f;
	unsigned int i;
	hw_code code;

	if (!url || !(shared = take_device(url)))
		return 1;
	code = hw_device_facts(shared->device, &facts);
	if (code != HW_CODE_OK)
		complain(url);
	give_device(shared);
	if (code != HW_CODE_OK)
		return 1;
	if (!facts.block_bytes) {
		log_err("headwater: %s is a key-value namespace; fio needs blocks: choose a block namespace with ?ns=N\n", url);
		return 1;
	}
	if (!td->files_index) {
		add_file(td, "headwater", 0, 0);
		td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
		td->o.open_files++;
	}
	for_each_file(td, f, i) {
		f->filetype = FIO_TYPE_BLOCK;
		f->real_file_size = facts.blocks * facts.block_bytes;
		fio_file_set_size_known(f);
	}
	return 0;
}

static int set(struct job *job, hw_param param, uint64_t value)
{
	if (hw_set_param(job->handle, param, value) == HW_CODE_OK)
		return 0;
	complain("cannot set an engine option");
	return 1;
}

static int headwater_init(struct thread_data *td)
{
	struct options *o = td->eo;
	const char *url = url_of(td);
	struct job *job = calloc(1, sizeof(*job));

	td->io_ops_data = job;
	if (!url || !(job->shared = take_device(url)))
		return 1;
	job->events = calloc(td->o.iodepth, sizeof(*job->events));
	if (hw_queue_create(job->shared->device, td->o.iodepth, 0, &job->queue) != HW_CODE_OK) {
		complain("cannot create a queue");
		return 1;
	}
	if (hw_handle_create(job->queue, &job->handle) != HW_CODE_OK) {
		complain("cannot create a handle");
		return 1;
	}
	if (o->scheduler != HW_SCHEDULER_FIFO && set(job, HW_PARAM_SCHEDULER, o->scheduler))
		return 1;
	if (o->cache_mib && set(job, HW_PARAM_CACHE_BYTES, (uint64_t)o->cache_mib << 20))
		return 1;
	if (o->period_us && set(job, HW_PARAM_PERIOD_NS, o->period_us * 1000ULL))
		return 1;
	return o->completion != HW_COMPLETION_POLL ? set(job, HW_PARAM_COMPLETION, o->completion) : 0;
}

static void headwater_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job)
		return;
	if (job->handle && hw_handle_destroy(job->handle) != HW_CODE_OK)
		complain("cannot destroy a handle");
	if (job->queue && hw_queue_destroy(job->queue) != HW_CODE_OK)
		complain("cannot destroy a queue");
	if (job->shared)
		give_device(job->shared);
	free(job->events);
	free(job);
	td->io_ops_data = NULL;
}

static int headwater_iomem_alloc(struct thread_data *td, size_t bytes)
{
	struct job *job = td->io_ops_data;

	if (hw_get_buffer(job->shared->device, bytes, &job->memory) != HW_CODE_OK) {
		complain("cannot allocate the buffers of a job");
		return 1;
	}
	td->orig_buffer = job->memory;
	return 0;
}

static void headwater_iomem_free(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (job && job->memory && hw_put_buffer(job->shared->device, job->memory) != HW_CODE_OK)
		complain("cannot release the buffers of a job");
	if (job)
		job->memory = NULL;
	td->orig_buffer = NULL;
}

static enum fio_q_status headwater_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	hw_code code;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		code = hw_aio_read(job->handle, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, io_u);
		break;
	case DDIR_WRITE:
		code = hw_aio_write(job->handle, io_u->xfer_buf, io_u->xfer_buflen, io_u->offset, io_u);
		break;
	case DDIR_TRIM:
		code = hw_aio_discard(job->handle, io_u->xfer_buflen, io_u->offset, io_u);
		break;
	default:
		code = hw_aio_flush(job->handle, io_u);
		break;
	}
	if (code == HW_CODE_OK)
		return FIO_Q_QUEUED;
	if (code == HW_CODE_WOULD_BLOCK)
		return FIO_Q_BUSY;
	complain("cannot submit a request");
	io_u->error = EIO;
	return FIO_Q_COMPLETED;
}

static int headwater_commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (hw_aio_submit(job->handle) == HW_CODE_OK)
		return 0;
	complain("cannot ring the doorbell");
	return -EIO;
}

static int headwater_getevents(struct thread_data *td, unsigned int min_events, unsigned int max_events,
			       const struct timespec *timeout)
{
	struct job *job = td->io_ops_data;
	size_t found = 0;
	uint64_t ns = HW_FOREVER;

	if (timeout)
		ns = timeout->tv_sec * 1000000000ULL + timeout->tv_nsec;
	if (hw_aio_complete(job->handle, min_events, max_events, ns, job->events, &found) != HW_CODE_OK) {
		complain("cannot reap completions");
		return -EIO;
	}
	return found;
}

static struct io_u *headwater_event(struct thread_data *td, int index)
{
	struct job *job = td->io_ops_data;
	hw_aio_event *event = &job->events[index];
	struct io_u *io_u = event->tag;

	if (event->code != HW_CODE_OK) {
		log_err("headwater: %s (status %#x) at %llu\n", hw_code_name(event->code), event->status,
			(unsigned long long)io_u->offset);
		io_u->error = EIO;
	} else {
		io_u->error = 0;
	}
	io_u->resid = 0;
	return io_u;
}

static int headwater_open(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int headwater_close(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "headwater",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_RAWIO | FIO_NODISKUTIL | FIO_MEMALIGN | FIO_NOEXTEND,
	.setup = headwater_setup,
	.init = headwater_init,
	.cleanup = headwater_cleanup,
	.queue = headwater_queue,
	.commit = headwater_commit,
	.getevents = headwater_getevents,
	.event = headwater_event,
	.open_file = headwater_open,
	.close_file = headwater_close,
	.iomem_alloc = headwater_iomem_alloc,
	.iomem_free = headwater_iomem_free,
	.options = options,
	.option_struct_size = sizeof(struct options),
};
