# Our own driver on our own controller: a node as a PCIe SSD, taken from the kernel by our driver. Redis clients of the host and
# the kernel's driver read the keys and blocks that our driver writes, with PRP lists that continue in further pages. The virtual
# IOMMU translates the mappings of our driver, page by page.
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
to_vfio() { bind_driver $DEVICE vfio-pci; }
to_kernel() { bind_driver $DEVICE nvme && until_true 10 test -b /dev/nvme0n2; }
redis() { host "redis-cli -p \${kv_RESP##*:} $*"; }
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }
says() { local text=$1; shift; "$@" 2>&1 | grep -q "$text"; }

promise "a namespace of blocks is created on the host" host '$HEADWATER namespace create --socket kv/attach.sock --blocks 4096 --size 64MiB'
promise "the controller is bound to vfio-pci" to_vfio
promise "device list prints its URL" says "^$URL  *NVMe controller, bound to vfio-pci" headwater device list
promise "device identify prints both namespaces, and commands of 16 MiB" headwater device identify $URL
identified() { grep -q '^namespace 1: keys' /tmp/said && grep -q '^namespace 2: 16384 blocks of 4096' /tmp/said && grep -q 'at most 16 MiB' /tmp/said; }
identified || failed=$((failed + 1))
promise "every KV command, and values up to the largest of one command" device_keys $URL try
sed 's/^/        | /' /tmp/said

stored() { printf 'hello from our driver' | device_keys $URL put greeting && is "$(redis get greeting)" 'hello from our driver'; }
promise "a value that our driver stores is read by redis-cli on the host" stored
from_redis() { redis set answer forty-two && is "$(device_keys $URL get answer)" forty-two; }
promise "a value that Redis stores is read by our driver" from_redis
# 3,000,000 bytes are 733 pages; a page of a PRP list has 512 entries.
large() {
  head -c 3000000 /dev/urandom >/tmp/large
  device_keys $URL put large </tmp/large && is "$(redis get large '|' head -c 3000000 '|' md5sum)" "$(md5sum </tmp/large)"
}
promise "a value whose PRP list has two pages reaches Redis unchanged" large
back() {
  local sum=$(host 'head -c 5000000 /dev/urandom | tee large | redis-cli -p ${kv_RESP##*:} -x set larger >set; md5sum <large')
  is "$(device_keys $URL get larger | md5sum)" "$sum"
}
promise "a value whose PRP list has three pages is read by our driver" back
listed() { device_keys $URL list >/tmp/list && for key in greeting answer large larger; do grep -qx $key /tmp/list || return; done; }
promise "list names every key" listed
deleted() { device_keys $URL delete greeting && is "$(redis exists greeting)" 0 && refused device_keys $URL get greeting; }
promise "a key deleted by our driver is gone for Redis" deleted
deleted_there() { redis del answer && refused device_keys $URL get answer; }
promise "a key deleted by Redis is gone for our driver" deleted_there

promise "many queues, every block command, misuse, closed and opened again" device_blocks "$URL?ns=2" try
promise "a queue over many pages of the guest" headwater bench --device "$URL?ns=2" --depth 500 --requests 20000
promise "blocks are written, up to 5 MiB a command" device_blocks "$URL?ns=2" write
promise "and read back" device_blocks "$URL?ns=2" verify
promise "the IOMMU refused no access" refused iommu_faults
promise "the kernel's driver takes the controller back" to_kernel
promise "and reads the blocks that our driver wrote" device_blocks io-uring:/dev/nvme0n2 verify
promise "our driver takes it again" to_vfio
promise "and every byte is unchanged" device_blocks "$URL?ns=2" verify
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
