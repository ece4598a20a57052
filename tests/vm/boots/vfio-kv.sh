# A key space as a PCIe SSD: Linux's driver, nvme-cli's passthrough, and the same bytes for Redis clients on the host.
# With the virtual IOMMU the firmware's queues lose their memory before the kernel's driver takes the device.
#: host serve kv --vfio-user kv.sock --capacity 256MiB
#: vfio-user kv.sock
#: modules nvme
#: iommu
#: kernel intel_iommu=on iommu=pt
#: tools nvme

# key NAME: the arguments that carry a key of at most 16 bytes (KV 1.0d figure 8).
key() {
  local words=$(printf '%s' "$1" | od -An -v -tx1 | tr -d ' \n') n=0 option at
  set -- cdw2 cdw3 cdw14 cdw15
  words=$(printf '%-32s' "$words" | tr ' ' 0)
  for option in "$@"; do
    at=$(echo "$words" | cut -c$((n + 1))-$((n + 8)) | sed 's/\(..\)\(..\)\(..\)\(..\)/\4\3\2\1/')
    echo "--$option=0x$at"; n=$((n + 8))
  done
}
# kv OPCODE KEY-LENGTH-AND-OPTIONS BYTES ARGUMENT...: one command on the generic device.
kv() { local opcode=$1 cdw11=$2 bytes=$3; shift 3; nvme io-passthru /dev/ng0n1 -n 1 -o $opcode --cdw10=$bytes --cdw11=$cdw11 "$@"; }
store() { printf '%s' "$2" >/tmp/value; kv 0x01 ${#1} ${#2} $(key "$1") -l ${#2} -w -i /tmp/value; }
retrieve() { kv 0x02 ${#1} 4096 $(key "$1") -l 4096 -r -b 2>/tmp/said.retrieve | head -c "$2"; }
redis() { host "redis-cli -p \${kv_RESP##*:} $*"; }
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }

promise "the stock driver takes the device" until_true 10 test -c /dev/ng0n1
promise "its doorbells are in guest memory" host 'grep -q "doorbells are in its memory" kv.log'
promise "a value is stored by passthrough" store greeting 'hello from a guest'
from_redis() { is "$(redis get greeting)" 'hello from a guest'; }
promise "and read by redis-cli on the host" from_redis
from_cli() { is "$(host '$HEADWATER kv --resp $kv_RESP get greeting')" 'hello from a guest'; }
promise "and by headwater kv get" from_cli
to_guest() { redis set answer forty-two; is "$(retrieve answer 9)" forty-two; }
promise "what Redis stored is retrieved by the guest" to_guest
promise "exist finds a stored key" kv 0x14 8 0 $(key greeting)
promise "exist does not find an absent key" refused kv 0x14 6 0 $(key absent)
absent_only() { printf x >/tmp/value; refused kv 0x01 $((8 | 0x200)) 1 $(key greeting) -l 1 -w -i /tmp/value; }
promise "a store only if absent is refused for a stored key" absent_only
listed() { kv 0x06 0 4096 -l 4096 -r -b 2>/dev/null >/tmp/list; grep -q greeting /tmp/list && grep -q answer /tmp/list; }
promise "list names both keys" listed
deleted() { kv 0x10 8 0 $(key greeting) && is "$(redis exists greeting)" 0; }
promise "a key deleted by the guest is gone for Redis" deleted
megabyte() {
  head -c 1000000 /dev/urandom >/tmp/large
  kv 0x01 5 1000000 $(key large) -l 1000000 -w -i /tmp/large
  kv 0x02 5 1000000 $(key large) -l 1000000 -r -b 2>/dev/null >/tmp/back
  cmp /tmp/large /tmp/back && is "$(redis strlen large)" 1000000
}
promise "a value of a megabyte is stored and retrieved" megabyte

# Ticks of processor time that the node has used.
ticks() { host 'cut -d" " -f14,15 /proc/$(sed "s/.*\"pid\":\([0-9]*\).*/\1/" kv.ready)/stat' | awk '{print $1 + $2}'; }
idle() {
  local before=$(ticks) used
  sleep 3; used=$(($(ticks) - before))
  echo "$used hundredths of a second in 3 s"; [ $used -lt 30 ]
}
promise "an idle guest lets the node sleep" idle

promise "nvme list" nvme list
promise "nvme id-ctrl" nvme id-ctrl /dev/nvme0
identify() { nvme admin-passthru /dev/nvme0 -o 6 -n "$2" --cdw10="$1" --cdw11=0x01000000 -l 4096 -r -b 2>/dev/null; }
revision() { is "$(identify 6 0 | head -c 4 | od -An -tx1 | tr -d ' \n')" 00030100; }
promise "the controller conforms to revision 1.3 of the Key Value command set" revision
format_in_use() { is "$(identify 5 1 | tail -c +73 | head -c 2 | od -An -tx1 | tr -d ' \n')" 1000; }
promise "its key space has keys of up to 16 bytes" format_in_use
promise "nvme smart-log" nvme smart-log /dev/nvme0
promise "nvme error-log" nvme error-log /dev/nvme0
promise "nvme get-feature, number of queues" nvme get-feature /dev/nvme0 -f 7
feature() { nvme set-feature /dev/nvme0 -f 4 --value=0x150 && nvme get-feature /dev/nvme0 -f 4 | grep -i 0x0*150; }
promise "nvme set-feature, and the value reads back" feature
coalesced() { nvme set-feature /dev/nvme0 -f 8 --value=0x0203 && kv 0x14 6 0 $(key answer); }
promise "coalesced interrupts still arrive" coalesced
promise "nvme reset" nvme reset /dev/nvme0
promise "the device serves after the reset" until_true 10 kv 0x14 6 0 $(key answer)
unbound() {
  local at=$(basename "$(readlink -f /sys/class/nvme/nvme0/device)")
  echo "$at" >/sys/bus/pci/drivers/nvme/unbind && echo "$at" >/sys/bus/pci/drivers/nvme/bind && until_true 10 test -c /dev/ng0n1
}
promise "the driver can be unbound and bound again" unbound
promise "the value is still there" to_guest
promise "nothing is wrong in the kernel's log" kernel_log_is_clean 'resetting controller'
