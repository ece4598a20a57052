"""The parts of a virtual machine, fetched by apt once and kept.

Input: a cache folder. Output: a kernel, an initramfs with busybox and modules, and a QEMU that supports vfio-user. Nothing
is installed: Debian's kernel and busybox come from the archive that this machine's apt uses; QEMU comes from
trixie-backports and is unpacked beside the system with every library it needs, its own loader included.
Invariant: a part is complete or absent, however many runs start at once and wherever one is killed.
"""

import fcntl
import glob
import io
import lzma
import os
import re
import shutil
import stat
import subprocess
import zlib

QEMU_SUITE = "trixie-backports"  # the first that has vfio-user-pci
MODULES = ("nvme nvme-tcp virtio_pci virtio_net af_packet ext4 crc32c_generic crct10dif_generic crc64_rocksoft_generic "
           "vfio vfio_iommu_type1 vfio-pci nfit nd_pmem").split()
# The name depends on the modules, so a cache made for another list is not used.
SYSTEM = f"system-{zlib.crc32(' '.join(MODULES).encode()):08x}"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def output(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def once(cache, name, make):
    """Returns the folder `name` of the cache, created by `make(folder)` if absent."""
    os.makedirs(cache, exist_ok=True)
    path = os.path.join(cache, name)
    with open(path + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(path):
            half = path + ".half"
            shutil.rmtree(half, ignore_errors=True)
            os.makedirs(half)
            make(half)
            os.rename(half, path)
    return path


def unpack(packages, into):
    for package in packages:
        tar = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", into], stdin=tar.stdout, check=True)
        if tar.wait() != 0:
            raise RuntimeError(f"{package} is damaged; remove it and try again")
        os.remove(package)


def archive():
    """Returns the Debian archive that this machine's apt uses."""
    known = output("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian").split()
    known = known or output("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    known = [address for address in known if "security" not in address and "debian" in address]
    if not known:
        raise RuntimeError("apt has no Debian archive; check /etc/apt/sources.list.d")
    return known[0]


def download_system(folder):
    """Downloads the packages of kernel and busybox; returns False if apt's lists lack them or are outdated."""
    search = ["apt-cache", "depends", "linux-image-amd64"]
    known = subprocess.run(search, text=True, capture_output=True, check=False).stdout
    image = re.search(r"Depends: (linux-image-\S+)", known)
    download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "busybox-static"]
    return bool(image) and subprocess.run([*download, image[1]], cwd=folder, check=False).returncode == 0


def make_system(folder):
    """Creates `vmlinux`, `version`, `busybox`, and `modules/` with the dependencies of each module."""
    if not download_system(folder):
        subprocess.run(["apt-get", "-qq", "update"], check=True)
        if not download_system(folder):
            raise RuntimeError("apt finds no linux-image-amd64 and busybox-static; check /etc/apt/sources.list.d")
    root = os.path.join(folder, "root")
    os.makedirs(root)
    unpack(glob.glob(f"{folder}/*.deb"), root)
    version = os.listdir(f"{root}/lib/modules")[0]
    subprocess.run(["depmod", "-b", root, version], check=True)
    # Unpacked here, because a kernel that unpacks itself takes seconds under emulation.
    packed = open(glob.glob(f"{root}/boot/vmlinuz*")[0], "rb").read()
    start = packed.find(b"\xfd7zXZ\0")
    open(f"{folder}/vmlinux", "wb").write(lzma.LZMADecompressor().decompress(packed[start:]))
    open(f"{folder}/version", "w", encoding="ascii").write(version)
    shutil.copy(f"{root}/bin/busybox", f"{folder}/busybox")
    keep_modules(f"{root}/lib/modules/{version}", f"{folder}/modules/lib/modules/{version}")
    subprocess.run(["depmod", "-b", f"{folder}/modules", version], check=True)
    shutil.rmtree(root)


def keep_modules(tree, kept):
    lines = [line.split(":", 1) for line in open(f"{tree}/modules.dep", encoding="ascii")]
    needs = {path: needed.split() for path, needed in lines}
    paths = {os.path.basename(path).split(".ko")[0].replace("-", "_"): path for path in needs}
    wanted = [paths[name.replace("-", "_")] for name in MODULES if name.replace("-", "_") in paths]
    for path in {path for name in wanted for path in [name, *needs[name]]}:
        os.makedirs(os.path.dirname(f"{kept}/{path}"), exist_ok=True)
        shutil.copy(f"{tree}/{path}", f"{kept}/{path}")
    for table in [*glob.glob(f"{tree}/modules.builtin*"), f"{tree}/modules.order"]:
        shutil.copy(table, kept)


def make_qemu(folder):
    """Creates `qemu`, a launcher, and `root/`, the programs that it launches."""
    apt = f"{folder}/apt"
    for made in ["lists/partial", "archives/partial"]:
        os.makedirs(f"{apt}/{made}")
    open(f"{apt}/status", "w", encoding="ascii").close()
    with open(f"{apt}/sources.list", "w", encoding="ascii") as sources:
        for suite in [QEMU_SUITE.removesuffix("-backports"), QEMU_SUITE]:
            sources.write(f"deb [signed-by={KEYRING}] {archive()} {suite} main\n")
    settings = {
        "Dir::State": apt, "Dir::State::status": f"{apt}/status", "Dir::Cache": apt,
        "Dir::Etc::sourcelist": f"{apt}/sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null", "APT::Sandbox::User": "root",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false", "Acquire::Languages": "none",
    }
    command = ["apt-get", "-qq", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]
    output(*command, "update")
    output(*command, "-y", "--no-install-recommends", "--download-only", "-t", QEMU_SUITE, "install", "qemu-system-x86")
    root = f"{folder}/root"
    for name in ["bin", "sbin", "lib", "lib64"]:
        os.makedirs(f"{root}/usr/{name}")
        os.symlink(f"usr/{name}", f"{root}/{name}")
    unpack(glob.glob(f"{apt}/archives/*.deb"), root)
    shutil.rmtree(apt)
    for unused in ["doc", "man", "locale", "perl", "i18n", "zoneinfo"]:
        shutil.rmtree(f"{root}/usr/share/{unused}", ignore_errors=True)
    with open(f"{folder}/qemu", "w", encoding="ascii") as launcher:
        launcher.write(
            '#!/bin/sh\nroot=$(dirname "$0")/root\nlib=$root/usr/lib/x86_64-linux-gnu\nexport QEMU_MODULE_DIR=$lib/qemu\n'
            'exec "$root/lib64/ld-linux-x86-64.so.2" --library-path "$lib" "$root/usr/bin/qemu-system-x86_64" '
            '-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"\n'
        )
    os.chmod(f"{folder}/qemu", 0o755)


class Archive:
    """An initramfs as the kernel accepts it: cpio, format newc, uncompressed."""

    def __init__(self):
        self.bytes = io.BytesIO()
        self.names = set()

    def add(self, name, mode, content=b""):
        name = name.strip("/")
        if name in self.names:
            return
        if "/" in name:
            self.add(os.path.dirname(name), stat.S_IFDIR | 0o755)
        self.names.add(name)
        path = name.encode() + b"\0"
        fields = (len(self.names), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        for part in (head, content):
            self.bytes.write(part + bytes(-len(part) % 4))

    def text(self, name, content, mode=0o755):
        self.add(name, stat.S_IFREG | mode, content.encode())

    def program(self, source, name):
        """Adds a program or script, with the shared libraries it needs."""
        content = open(source, "rb").read()
        self.add(name, stat.S_IFREG | 0o755, content)
        if content.startswith(b"\x7fELF"):
            libraries = subprocess.run(["ldd", source], text=True, capture_output=True, check=False).stdout
            for library in re.findall(r"(/\S+) \(0x", libraries):
                # A library of our own lies beside its user ($ORIGIN): its folder here may be one that the guest mounts over.
                system = os.path.realpath(library).startswith(("/lib", "/usr"))
                self.add(library if system else f"{os.path.dirname(name)}/{os.path.basename(library)}", stat.S_IFREG | 0o755, open(library, "rb").read())

    def tree(self, source, name):
        for folder, _, files in os.walk(source):
            for file in files:
                path = os.path.join(folder, file)
                self.add(os.path.join(name, os.path.relpath(path, source)), stat.S_IFREG | 0o644, open(path, "rb").read())

    def done(self):
        self.add("TRAILER!!!", 0)
        return self.bytes.getvalue() + bytes(512)


def base(system):
    """Returns an archive with busybox and the modules, as every guest has them."""
    archive_ = Archive()
    for folder in "proc sys dev tmp run mnt root etc".split():
        archive_.add(folder, stat.S_IFDIR | 0o755)
    archive_.program(f"{system}/busybox", "bin/busybox")
    for name in output(f"{system}/busybox", "--list").split():
        archive_.add(f"bin/{name}", stat.S_IFLNK | 0o777, b"/bin/busybox")
    archive_.add("sbin", stat.S_IFLNK | 0o777, b"bin")  # where the kernel looks for modprobe
    archive_.tree(f"{system}/modules", "")
    return archive_
