/*
 * Runs a program whose fdatasync fails with EIO while a file exists: failing_flush FILE PROGRAM ARGUMENTS...
 *
 * Each call that fails appends a byte to the file. Other calls are carried out. A seccomp filter hands the calls to a
 * second process, which answers them. io_uring is refused: for it the kernel flushes without a system call. No privilege
 * is needed. Exit code 77: the system has no such filter.
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

/* Answers calls until every process under the filter has ended. */
static int answer_calls(int listener, const char *file) {
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
        if (must_fail(file)) {
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
    if (count < 3) {
        fprintf(stderr, "usage: failing_flush FILE PROGRAM ARGUMENTS...\n");
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
        /* The readers of the program's output wait for its end, not for the end of this process. */
        int nothing = open("/dev/null", O_RDWR);
        for (int standard = 0; standard < 3; standard++) {
            dup2(nothing, standard);
        }
        close(ends[1]);
        int listener = receive_descriptor(ends[0]);
        return listener < 0 ? 1 : answer_calls(listener, arguments[1]);
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
    execv(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 2;
}
