"""One virtual machine that runs a script.

Input: a `Boot`. Output: the script's output and exit status, 124 on a timeout, 125 when the guest ended without a status.
QEMU emulates everything (no KVM), so that a plain container is enough. The first serial line is the kernel's console, the
second the script's output, the third a dialogue: the script requests the host to run a command and receives the answer.
Invariant: neither the machine nor a node outlives this process.
"""

import base64
import ctypes
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import parts

HERE = os.path.dirname(os.path.abspath(__file__))
LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Boot:
    """A boot's file: a shell script for the guest, with its requirements in comments: `#: key value`."""

    def __init__(self, path):
        self.name = os.path.basename(path).removesuffix(".sh")
        self.script = open(path, encoding="ascii").read()
        settings = re.findall(r"^#: *(\S+) *(.*)$", self.script, re.M)
        unknown = {key for key, _ in settings} - {"host", "vfio-user", "net", "tools", "modules", "memory", "timeout", "kernel", "reboots", "iommu",
                                               "device", "drive", "example", "built", "nodes", "distance", "headwater", "memory-kind", "nvdimm"}
        if unknown:
            raise SystemExit(f"{path}: unknown keys {', '.join(sorted(unknown))}; tests/vm/README.md lists the known ones")
        self.every = lambda key: [value for name, value in settings if name == key]
        self.one = lambda key, default: (self.every(key) or [default])[-1]


class Host:
    """Commands that the guest may run on the host: its programs, and nodes that live as long as the run."""

    def __init__(self, folder, program):
        self.folder, self.program, self.nodes = folder, program, {}
        self.environment = {**os.environ, "RUN": folder, "HEADWATER": program, "HEADWATER_SPIN_US": "20", "RUST_LOG": "info"}

    def run(self, line):
        word, *arguments = shlex.split(line) or [""]
        built_in = {"serve": self.serve, "stop": self.stop, "kill": self.kill, "address": self.address}.get(word)
        if built_in:
            try:
                return 0, built_in(*arguments)
            except (OSError, RuntimeError, TypeError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
                return 1, f"{line}: {error!r}\n"
        environment = {**self.environment, **{f"{name}_RESP": self.ready(name).get("resp", "") for name in self.nodes}}
        done = subprocess.run(["bash", "-c", line], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        return done.returncode, done.stdout.decode(errors="replace")

    def ready(self, name):
        try:
            return json.load(open(f"{self.folder}/{name}.ready", encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def serve(self, name, *arguments):
        """Starts a node on the data directory `name` and waits until it serves."""
        command = [self.program, "serve", "--data", name, "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                   "--ready-file", f"{name}.ready", *arguments]
        log = open(f"{self.folder}/{name}.log", "ab")
        node = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=log, preexec_fn=die_with_parent)
        self.nodes[name] = node
        until = time.monotonic() + 30
        while self.ready(name).get("pid") != node.pid:
            if node.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the node did not start: {open(log.name, errors='replace').read()[-2000:]}")
            time.sleep(0.02)
        return ""

    def address(self, name, front_end):
        """Returns the address of a front end from a node's ready file, with the host's address in the guest."""
        return self.ready(name)[front_end].replace("127.0.0.1", "10.0.2.2") + "\n"

    def stop(self, name):
        """Stops a node cleanly; its exit status must be 0."""
        node = self.nodes.pop(name)
        node.terminate()
        if node.wait(30) != 0:
            raise RuntimeError(f"exit status {node.returncode}")
        return ""

    def kill(self, name):
        """Kills a node without a shutdown."""
        node = self.nodes.pop(name)
        node.kill()
        node.wait()
        return ""

    def end(self):
        """Stops the running nodes; returns their errors."""
        wrong = []
        for name in list(self.nodes):
            if self.nodes[name].poll() is not None:
                wrong.append(f"node {name} ended early with status {self.nodes[name].returncode}")
            else:
                status, text = self.run(f"stop {name}")
                wrong += [text] * status
        for log in [file for file in os.listdir(self.folder) if file.endswith(".log")]:
            text = open(f"{self.folder}/{log}", errors="replace").read()
            wrong += [f"{log}: {line}" for line in text.splitlines() if "panicked" in line]
        return wrong


def without_debug(path, folder):
    """Makes a copy of a program without what only debuggers read: a guest unpacks all its programs in memory."""
    copy = os.path.join(folder, os.path.basename(path))
    subprocess.run(["strip", "--strip-debug", "-o", copy, path], check=True)
    return copy


def first_files(boot, system, program, folder):
    files = parts.base(system)
    for tool in " ".join(boot.every("tools")).split():
        path = shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")
        if not path:
            raise SystemExit(f"{boot.name}: {tool} is not installed; `make test-vm` installs it")
        files.program(os.path.realpath(path), f"usr/local/bin/{tool}")
    if boot.every("headwater"):
        files.program(without_debug(program, folder), "usr/local/bin/headwater")
    for name in boot.every("example"):
        files.program(without_debug(f"{os.path.dirname(program)}/examples/{name}", folder), f"usr/local/bin/{name}")
    for name in boot.every("built"):
        files.program(f"{os.path.dirname(program)}/{name}", f"usr/local/bin/{os.path.basename(name)}")
    for name in ["init", "promises"]:
        files.program(f"{HERE}/guest/{name}", name if name == "init" else f"etc/{name}")
    facts = {"MODULES": " ".join(boot.every("modules")), "NET": "1" if boot.every("net") else ""}
    files.text("etc/boot", "".join(f"{name}={shlex.quote(value)}\n" for name, value in facts.items()))
    files.text("etc/script", boot.script)
    files.text("etc/nvme/hostnqn", "nqn.2014-08.org.nvmexpress:uuid:6b1f7a52-0d0a-4c53-9a39-0f6c1e4d2a10\n", 0o644)
    files.text("etc/nvme/hostid", "6b1f7a52-0d0a-4c53-9a39-0f6c1e4d2a10\n", 0o644)
    return files.done()


# What QEMU takes the guest's memory from: a memfd that it seals against shrinking, and two kinds that can shrink.
MEMORY_KINDS = {"memfd": "memfd", "file": "file,mem-path=/dev/shm", "huge-pages": "memfd,hugetlb=on,hugetlbsize=2M,seal=off"}


def lacks_huge_pages(boot):
    """Returns why the boot cannot run, if its memory consists of more huge pages than are free."""
    if boot.one("memory-kind", "memfd") != "huge-pages":
        return None
    wanted, pages = int(boot.one("memory", "512")) // 2, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    free = int(open(pages).read()) if os.path.exists(pages) else 0
    return f"{free} of {wanted} huge pages are free; echo {wanted} > /proc/sys/vm/nr_hugepages" if free < wanted else None


def memory_nodes(boot, sizes):
    line = []
    for node, size in enumerate(sizes):
        cpus = f"cpus={node}," if len(sizes) > 1 else ""
        line += ["-object", f"memory-backend-{MEMORY_KINDS[boot.one('memory-kind', 'memfd')]},id=ram{node},share=on,size={size}M",
                 "-numa", f"node,nodeid={node},{cpus}memdev=ram{node}"]
    for triple in boot.every("distance"):
        one, other, distance = triple.split()
        line += ["-numa", f"dist,src={one},dst={other},val={distance}"]
    return line


def persistent_memory(boot, folder):
    """Modules of persistent memory, each a file of the run's folder: what is stored there survives a reset of the guest."""
    line = []
    for name, length in (nvdimm.split() for nvdimm in boot.every("nvdimm")):
        # The labels of namespaces lie behind the memory, so that it stays aligned.
        size = (int(length.removesuffix("M")) << 20) + (128 << 10)
        subprocess.run(["truncate", "-s", str(size), f"{folder}/{name}.pmem"], check=True)
        line += ["-object", f"memory-backend-file,id={name},share=on,mem-path={folder}/{name}.pmem,size={size}",
                 "-device", f"nvdimm,id={name}-module,memdev={name},label-size=128K"]
    return line


def command(boot, folder, system, qemu, dialogue):
    nodes = (boot.one("nodes", "") or boot.one("memory", "512")).split()
    # Without "rep movsb" in the feature bits the guest's C library copies in words, which emulation does much faster.
    line = [qemu, "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm,-la57", "-smp", f"{len(nodes)},sockets={len(nodes)}" if len(nodes) > 1 else "2", "-machine", "q35,nvdimm=on" if boot.every("nvdimm") else "q35",
            "-m", f"{sum(map(int, nodes))}M" + (",slots=4,maxmem=8G" if boot.every("nvdimm") else ""), *memory_nodes(boot, nodes), "-nodefaults", "-display", "none",
            "-serial", f"file:{folder}/console", "-serial", "stdio",
            "-chardev", f"socket,id=dialogue,fd={dialogue}", "-serial", "chardev:dialogue",
            "-kernel", f"{system}/vmlinux", "-initrd", f"{folder}/initrd", "-append",
            "console=ttyS0 mitigations=off no_timer_check tsc=reliable audit=0 random.trust_cpu=1 "
            + " ".join(boot.every("kernel")) + ("" if boot.every("reboots") else " panic=-1")]
    line += [] if boot.every("reboots") else ["-no-reboot"]
    line += persistent_memory(boot, folder)
    line += ["-device", boot.one("iommu", "") or "intel-iommu,intremap=on,caching-mode=on"] if boot.every("iommu") else []
    for path in boot.every("vfio-user"):
        device = {"driver": "vfio-user-pci", "bus": "pcie.0", "socket": {"type": "unix", "path": f"{folder}/{path}"}}
        line += ["-device", json.dumps(device)]
    for name, length in (drive.split() for drive in boot.every("drive")):
        subprocess.run(["truncate", "-s", length, f"{folder}/{name}.img"], check=True)
        line += ["-drive", f"if=none,id={name},format=raw,file={folder}/{name}.img"]
    for device in boot.every("device"):
        line += ["-device", device if "bus=" in device else f"{device},bus=pcie.0"]
    if boot.every("net"):
        line += ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,bus=pcie.0,romfile="]
    return line


class Dialogue:
    """The host's end of the third serial line."""

    def __init__(self, stream, host):
        self.stream, self.host, self.pending, self.status = stream, host, b"", None

    def listen(self):
        received = self.stream.recv(4096)
        self.pending += received
        while b"\n" in self.pending:
            line, self.pending = self.pending.split(b"\n", 1)
            word, _, rest = line.decode(errors="replace").strip().partition(" ")
            if word == "exit":
                self.status = int(rest)
            elif word == "host":
                status, text = self.host.run(base64.b64decode(rest).decode())
                self.stream.sendall(f"{status} {base64.b64encode(text.encode()).decode()}\n".encode())
        return bool(received)


def run(boot, cache, folder, program):
    """Runs a boot; prints the script's output as it arrives. Returns 0 if it passed, `None` if it was skipped."""
    if reason := lacks_huge_pages(boot):
        print(f"skipped {boot.name}: {reason}")
        return None
    system = parts.once(cache, parts.SYSTEM, parts.make_system)
    qemu = parts.once(cache, "qemu", parts.make_qemu) + "/qemu"
    host = Host(folder, program)
    try:
        for line in boot.every("host"):
            status, text = host.run(line)
            if status:
                print(f"FAILED  {boot.name}: on the host: {line}: {text}")
                return 1
        open(f"{folder}/initrd", "wb").write(first_files(boot, system, program, folder))
        status = run_guest(boot, folder, system, qemu, host)
    finally:
        wrong = host.end()
    for text in wrong:
        print(f"FAILED  {boot.name}: {text}")
    if status in (124, 125):
        print("".join(open(f"{folder}/console", errors="replace").readlines()[-30:]))
    return status or len(wrong)


def run_guest(boot, folder, system, qemu, host):
    ours, theirs = socket.socketpair()
    line = command(boot, folder, system, qemu, theirs.fileno())
    errors = open(f"{folder}/qemu.log", "ab")
    machine = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                               pass_fds=[theirs.fileno()], preexec_fn=die_with_parent)
    theirs.close()
    dialogue, until = Dialogue(ours, host), time.monotonic() + float(boot.one("timeout", "120"))
    open_ends = [machine.stdout, ours]
    while open_ends and time.monotonic() < until:
        ready, _, _ = select.select(open_ends, [], [], 1)
        for end in ready:
            if end is ours:
                is_open = dialogue.listen()
            else:
                text = os.read(machine.stdout.fileno(), 65536)
                is_open = bool(text)
                sys.stdout.write(text.decode(errors="replace"))
                sys.stdout.flush()
            if not is_open:
                open_ends.remove(end)
    if open_ends:
        machine.kill()
    machine.wait()
    if dialogue.status is None:
        print(open(errors.name, errors="replace").read()[-2000:])
        return 124 if open_ends else 125
    return dialogue.status
