# What every other boot relies on: a script's output, its dialogue with the host, and refusals that are noticed.
#: net

promise "the guest runs a kernel of the archive" grep -q Debian /proc/version
answers() { [ "$(host 'echo one; echo two')" = "one
two" ]; }
promise "the host answers with its output" answers
promise "the host's status comes back" refused host 'exit 3'
promise "nothing is wrong in the kernel's log" kernel_is_content
