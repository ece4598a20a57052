# What nvme-cli does to a subsystem: connect-all, formats, deletions and a hundred connections, over NVMe/TCP. The node runs
# in the guest: its discovery names the address that it listens on, which connect-all connects to.
#: modules nvme-tcp
#: headwater
#: tools nvme redis-cli
#: memory 768
#: timeout 300

where="-t tcp -a 127.0.0.1 -s 4420"
redis() { redis-cli -p 6380 "$@"; }
is() { [ "$1" = "$2" ] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }
appeared() { CONTROLLER=$(ls -d /dev/nvme[0-9]* 2>/dev/null | grep -E 'nvme[0-9]+$' | head -n 1); [ -n "$CONTROLLER" ]; }
gone() { ! appeared; }

headwater serve --data /tmp/node --capacity 256MiB --memory 64MiB --resp 127.0.0.1:6380 --nvme-tcp 127.0.0.1:4420 \
  --metrics 127.0.0.1:0 --ready-file /tmp/ready >/tmp/serve.log 2>&1 &
NODE=$!
served() { until_true 30 test -e /tmp/ready || { cat /tmp/serve.log; return 1; }; }
promise "a node serves in the guest" served

all() { nvme connect-all $where && until_true 20 appeared; }
promise "connect-all finds the subsystem and connects without TLS" all
NAME=$(cat /sys/class/nvme/nvme*/subsysnqn 2>/dev/null | grep -v discovery | head -n 1)
command_sets() {
  local cap=$(nvme get-property $CONTROLLER -o 0 2>&1 | sed -n 's/.*value: *0*x*//p')
  [ -n "$cap" ] || { nvme get-property $CONTROLLER -o 0; return 1; }
  # CAP.CSS is bits 44:37: the NVM command set and all that are supported, and not "no command set".
  is $((0x$cap >> 37 & 0xFF)) 65
}
promise "CAP.CSS says NVM and all command sets" command_sets

created() {
  nvme create-ns $CONTROLLER --nsze=8192 --ncap=8192 --flbas=1 --csi=0 &&
    nvme attach-ns $CONTROLLER -n 2 -c "$(nvme id-ctrl $CONTROLLER | sed -n 's/^cntlid *: *//p')" && until_true 10 disk
}
disk() { DISK=$(ls /dev/nvme*n2 2>/dev/null | head -n 1); [ -b "$DISK" ]; }
promise "a block namespace is created beside the key space" created
written() { head -c 65536 /dev/urandom >/tmp/data; dd if=/tmp/data of=$DISK bs=65536 oflag=direct 2>/dev/null; }
promise "and written" written
formatted() {
  nvme format $DISK --lbaf=0 --force && is "$(blockdev --getss $DISK 2>/dev/null || cat /sys/block/$(basename $DISK)/queue/logical_block_size)" 512 &&
    [ -z "$(head -c 65536 $DISK | tr -d '\0' | head -c 1)" ]
}
promise "nvme format gives it blocks of 512 bytes, all zeroes" formatted
stored() { redis set kept value; is "$(redis get kept)" value; }
promise "a key is stored beside it" stored
emptied() { nvme format $CONTROLLER -n 1 --force && is "$(redis exists kept)" 0; }
promise "nvme format empties the key space" emptied
deleted() { nvme delete-ns $CONTROLLER -n 2 && until_true 10 undisked; }
undisked() { ! disk; }
promise "nvme delete-ns removes the namespace" deleted
first_stays() { redis set kept again && headwater namespace --socket /tmp/node/attach.sock delete 1 && is "$(redis exists kept)" 0 && redis set kept last; }
promise "headwater namespace delete 1 empties namespace 1, which stays" first_stays

hundred() {
  local n
  for n in $(seq 100); do
    nvme disconnect -n "$NAME" >/dev/null && nvme connect $where -n "$NAME" --nr-io-queues=1 || { echo "connection $n"; return 1; }
  done
  until_true 10 appeared
}
promise "a hundred connections, each as soon as the last has ended" hundred
value() { is "$(redis get kept)" last; }
promise "and the value is still there" value
promise "disconnect-all" nvme disconnect-all
promise "no controller is left" until_true 10 gone
promise "nothing is wrong in the kernel's log" kernel_log_is_clean 'Shutdown timeout set|loops_per_jiffy'
stopped() { kill -TERM $NODE && wait $NODE; }
promise "the node stops cleanly" stopped
