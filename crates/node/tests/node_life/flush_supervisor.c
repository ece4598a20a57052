/*
 * Runs a program whose calls of fdatasync a second process answers:
 *
 *   flush_supervisor fail FILE PROGRAM ARGUMENTS...      fails with EIO while FILE exists, and appends a byte to it
 *   flush_supervisor copy FROM TO PROGRAM ARGUMENTS...   copies FROM to TO first: what a power cut leaves at least
 *
 * Otherwise the call is carried out. A seccomp filter hands the calls to the second process. io_uring is refused: for it the
 * kernel flushes without a system call. The second process ends when the program and its children have ended, and keeps
 * their standard error open until then. No privilege is needed. Exit code 77: the system has no such filter.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NO_FILTER = 77 };

/* Returns the descriptor from which the calls of this process and its children are received, or -1. */
static int install_filter(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return -1;
    }
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* A message of one byte with room for a descriptor. */
struct message {
    char byte;
    struct iovec part;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct msghdr header;
};

static void prepare(struct message *message) {
    memset(message, 0, sizeof *message);
    message->part.iov_base = &message->byte;
    message->part.iov_len = 1;
    message->header.msg_iov = &message->part;
    message->header.msg_iovlen = 1;
    message->header.msg_control = message->control;
    message->header.msg_controllen = sizeof message->control;
}

static int send_descriptor(int to, int descriptor) {
    struct message message;
    prepare(&message);
    struct cmsghdr *control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    return sendmsg(to, &message.header, 0) == 1 ? 0 : -1;
}

static int receive_descriptor(int from) {
    struct message message;
    int descriptor = -1;
    prepare(&message);
    if (recvmsg(from, &message.header, 0) == 1) {
        struct cmsghdr *control = CMSG_FIRSTHDR(&message.header);
        if (control != NULL && control->cmsg_type == SCM_RIGHTS) {
            memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
        }
    }
    return descriptor;
}

/* Returns true if the file exists, and appends a byte to it. */
static int must_fail(const char *file) {
    int descriptor = open(file, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (descriptor < 0) {
        return 0;
    }
    ssize_t written = write(descriptor, "x", 1);
    close(descriptor);
    return written == 1;
}

/* Copies the data of a file; holes stay holes. */
static int copy_data(int from, int to) {
    off_t end = lseek(from, 0, SEEK_END);
    if (end < 0 || ftruncate(to, end) != 0) {
        return -1;
    }
    for (off_t at = 0; at < end;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0) {
            return errno == ENXIO ? 0 : -1;
        }
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0) {
            return -1;
        }
        for (off_t target = data; data < hole;) {
            ssize_t copied = copy_file_range(from, &data, to, &target, (size_t)(hole - data), 0);
            if (copied <= 0) {
                return -1;
            }
        }
        at = hole;
    }
    return 0;
}

/* Copies a file, if it exists; the copy appears under its name when it is complete. */
static void copy_file(const char *from, const char *to) {
    char unfinished[4096];
    int source = open(from, O_RDONLY | O_CLOEXEC);
    if (source < 0) {
        return;
    }
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", to);
    int target = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (target < 0 || copy_data(source, target) != 0 || rename(unfinished, to) != 0) {
        perror(to);
    }
    close(target);
    close(source);
}

/* Answers calls until every process under the filter has ended. `to` is null if calls are to fail. */
static int answer_calls(int listener, const char *file, const char *to) {
    struct seccomp_notif_sizes sizes;
    if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) != 0) {
        return 1;
    }
    struct seccomp_notif *call = calloc(1, sizes.seccomp_notif + sizeof *call);
    struct seccomp_notif_resp *answer = calloc(1, sizes.seccomp_notif_resp + sizeof *answer);
    if (call == NULL || answer == NULL) {
        return 1;
    }
    for (;;) {
        struct pollfd ready = {listener, POLLIN, 0};
        if (poll(&ready, 1, -1) < 0 && errno != EINTR) {
            return 1;
        }
        if (ready.revents & (POLLHUP | POLLERR)) {
            return 0;
        }
        memset(call, 0, sizes.seccomp_notif);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, call) != 0) {
            continue;
        }
        memset(answer, 0, sizes.seccomp_notif_resp);
        answer->id = call->id;
        if (to != NULL) {
            copy_file(file, to);
        }
        if (to == NULL && must_fail(file)) {
            answer->error = -EIO;
        } else {
            answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        }
        /* A thread that was killed needs no answer. */
        (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer);
    }
}

int main(int count, char **arguments) {
    int ends[2];
    int copies = count > 1 && strcmp(arguments[1], "copy") == 0;
    char **program = arguments + (copies ? 4 : 3);
    if (program >= arguments + count) {
        fprintf(stderr, "usage: flush_supervisor fail FILE PROGRAM ... or flush_supervisor copy FROM TO PROGRAM ...\n");
        return 2;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        perror("socketpair");
        return 2;
    }
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 2;
    }
    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);
        dup2(nothing, 0);
        dup2(nothing, 1);
        close(ends[1]);
        int listener = receive_descriptor(ends[0]);
        return listener < 0 ? 1 : answer_calls(listener, arguments[2], copies ? arguments[3] : NULL);
    }
    close(ends[0]);
    int listener = install_filter();
    if (listener < 0) {
        perror("seccomp");
        return NO_FILTER;
    }
    if (send_descriptor(ends[1], listener) != 0) {
        perror("sendmsg");
        return 2;
    }
    close(listener);
    execv(program[0], program);
    perror(program[0]);
    return 2;
}
