# xNVMe's key-value tool through the guest's own driver. Not part of `make test-vm`, as no distribution has the tool: build it
# (docs/operating/guests.md), put it on PATH, then `tests/vm/run.py tests/vm/more/xnvme-kvs.sh`.
#: host serve kv --vfio-user kv.sock --capacity 256MiB
#: vfio-user kv.sock
#: modules nvme
#: tools kvs

redis() { host "redis-cli -p \${kv_RESP##*:} $*"; }
tool() { local what=$1; shift; kvs $what /dev/ng0n1 --be linux "$@"; }
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }

promise "the stock driver takes the device" until_true 10 test -c /dev/ng0n1
promise "kvs store" tool store --key greeting --value hello
from_redis() { is "$(redis get greeting)" hello; }
promise "and redis-cli reads it" from_redis
retrieved() { redis set answer forty-two && tool retrieve --key answer | grep -q forty-two; }
promise "kvs retrieve finds what Redis stored" retrieved
promise "kvs exist" tool exist --key greeting
promise "kvs exist, of an absent key" refused tool exist --key absent
promise "kvs store --only-add, of a stored key" refused tool store --key greeting --value again --only-add
promise "kvs store --only-update" tool store --key greeting --value again --only-update
promise "kvs list" tool list --key greeting
deleted() { tool delete --key greeting && is "$(redis exists greeting)" 0; }
promise "kvs delete, and the key is gone for Redis" deleted
promise "nothing is wrong in the kernel's log" kernel_log_is_clean
