# Both halves ours: a node as a PCIe SSD, taken from the kernel by our own driver. Keys and blocks, with PRP lists that go on in
# further pages, are there for Redis clients of the host and for the kernel's driver. The virtual IOMMU translates what our driver
# maps, page by page.
#: host serve kv --vfio-user kv.sock --capacity 256MiB
#: vfio-user kv.sock
#: modules nvme vfio_iommu_type1 vfio-pci
#: iommu
#: kernel intel_iommu=on iommu=pt
#: headwater
#: example device_blocks
#: example device_keys

DEVICE=$(basename $(dirname $(grep -l 0x010802 /sys/bus/pci/devices/*/class)))
URL=vfio:$DEVICE
to_vfio() { give $DEVICE vfio-pci; }
to_kernel() { give $DEVICE nvme && until_true 10 test -b /dev/nvme0n2; }
redis() { host "redis-cli -p \${kv_RESP##*:} $*"; }
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }
says() { local text=$1; shift; "$@" 2>&1 | grep -q "$text"; }

promise "a namespace of blocks is made on the host" host '$HEADWATER namespace create --socket kv/attach.sock --blocks 4096 --size 64MiB'
promise "the controller is bound to vfio-pci" to_vfio
promise "device list names it by its URL" says "^$URL  *NVMe controller, bound to vfio-pci" headwater device list
promise "device identify tells of both namespaces, and of commands of 16 MiB" headwater device identify $URL
identified() { grep -q '^namespace 1: keys' /tmp/said && grep -q '^namespace 2: 16384 blocks of 4096' /tmp/said && grep -q 'at most 16 MiB' /tmp/said; }
identified || failed=$((failed + 1))
promise "every KV command, and values up to what one command moves" device_keys $URL try
sed 's/^/        | /' /tmp/said

stored() { printf 'hello from our driver' | device_keys $URL put greeting && is "$(redis get greeting)" 'hello from our driver'; }
promise "a value that our driver stores is read by redis-cli on the host" stored
from_redis() { redis set answer forty-two && is "$(device_keys $URL get answer)" forty-two; }
promise "and what Redis stored by our driver" from_redis
# 3,000,000 bytes are 733 pages; a page of a PRP list has 512 entries.
large() {
  head -c 3000000 /dev/urandom >/tmp/large
  device_keys $URL put large </tmp/large && is "$(redis get large '|' head -c 3000000 '|' md5sum)" "$(md5sum </tmp/large)"
}
promise "a value whose PRP list has two pages reaches Redis whole" large
back() {
  local sum=$(host 'head -c 5000000 /dev/urandom | tee large | redis-cli -p ${kv_RESP##*:} -x set larger >set; md5sum <large')
  is "$(device_keys $URL get larger | md5sum)" "$sum"
}
promise "and one of three pages comes back" back
listed() { device_keys $URL list >/tmp/list && for key in greeting answer large larger; do grep -qx $key /tmp/list || return; done; }
promise "list names every key" listed
deleted() { device_keys $URL delete greeting && is "$(redis exists greeting)" 0 && refused device_keys $URL get greeting; }
promise "a key deleted by our driver is gone for Redis" deleted
deleted_there() { redis del answer && refused device_keys $URL get answer; }
promise "and the other way round" deleted_there

promise "many queues, every block command, misuse, closed and opened again" device_blocks "$URL?ns=2" try
promise "a queue that lies over many pages of the guest" headwater bench --device "$URL?ns=2" --depth 500 --requests 20000
promise "blocks are written, up to 5 MiB a command" device_blocks "$URL?ns=2" write
promise "and read again" device_blocks "$URL?ns=2" verify
promise "the IOMMU saw no address that was not mapped" refused faults
promise "the kernel's driver takes the controller back" to_kernel
promise "and finds the blocks as ours wrote them" device_blocks io-uring:/dev/nvme0n2 verify
promise "it is ours again" to_vfio
promise "with every byte" device_blocks "$URL?ns=2" verify
promise "nothing is wrong in the kernel's log" kernel_is_content
