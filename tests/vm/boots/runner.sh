# The functions that every other boot uses: a script's output, its dialogue with the host, and the detection of failures.
#: net

promise "the guest runs Debian's kernel" grep -q Debian /proc/version
answers() { [ "$(host 'echo one; echo two')" = "one
two" ]; }
promise "the host returns the output of a command" answers
promise "the host returns the status of a command" refused host 'exit 3'
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
