# Figure 2 of the NVMeDirect paper on an emulated SSD: random reads and writes of 4 KiB by one thread, on every I/O path, at
# several queue depths, in several rounds. Device and processor are emulated: only the order of the lines and their ratios are
# meaningful, and those of mediated sharing at small depths only on a quiet machine, because process, node and emulated device
# take turns to poll on two processors (the longer the node polls, the slower they get). It only checks that each path works.
# Run it by name, with a release build (make build); it takes six minutes:
# tests/vm/run.py --program target/release/headwater tests/vm/more/figure2.sh
#: iommu
#: kernel intel_iommu=on iommu=nopt nvme.poll_queues=1
#: memory 1024
#: timeout 900
#: drive one 128M
#: device nvme,id=ssd,serial=HWFIG0001,max_ioqpairs=8
#: device nvme-ns,bus=ssd,drive=one,nsid=1,logical_block_size=4096,physical_block_size=4096
#: modules nvme vfio_iommu_type1 vfio-pci
#: tools fio
#: headwater

ulimit -l unlimited
until_true 20 test -b /dev/nvme0n1
DEVICE=$(basename $(readlink /sys/class/nvme/nvme0/device))
SOCKET=/tmp/ssd.sock
ROUNDS="1 2 3" DEPTHS="1 8 64" SECONDS_EACH=2
to_vfio() { bind_driver $DEVICE vfio-pci; }
to_kernel() { bind_driver $DEVICE nvme; until_true 10 test -b /dev/nvme0n1; }
# A node owns the SSD; an attached process uses mediated sharing, or has a hardware queue.
shared() {
  rm -f /tmp/ready
  headwater serve --data /tmp/node --device vfio:$DEVICE --attach $SOCKET --metrics 127.0.0.1:0 --ready-file /tmp/ready >/tmp/serve.log 2>&1 &
  NODE=$!
  until_true 60 test -e /tmp/ready || { cat /tmp/serve.log; return 1; }
}
stopped() { kill -TERM $NODE && wait $NODE; }

# found PATH DIRECTION DEPTH IOPS: adds a row of the table.
found() { [ "$4" -gt 0 ] && echo "$1 $2 $3 $4" >>/tmp/rows; }
by_fio() {
  local field=8
  [ $3 = write ] && field=49
  found "$1" $3 $4 $(fio --minimal --name=f --filename=/dev/nvme0n1 --direct=1 --bs=4k --ioengine=$2 --iodepth=$4 --rw=rand$3 --time_based \
    --runtime=$SECONDS_EACH 2>/dev/null | cut -d';' -f$field)
}
by_us() {
  local share=1
  [ $3 = write ] && share=0
  found "$1" $3 $4 $(headwater bench --device "$2" --depth $4 --read-share $share --duration $SECONDS_EACH --json | sed -n 's/.*"rate": *\([0-9]*\).*/\1/p')
}
# each PATH FUNCTION ARGUMENT [DEPTHS]: one round of an I/O path, both directions at every depth.
each() {
  local direction depth
  for direction in read write; do
    for depth in ${4:-$DEPTHS}; do $2 "$1" "$3" $direction $depth || return; done
  done
}

for round in $ROUNDS; do
  promise "round $round: the kernel, pread and pwrite" each pread by_fio psync 1
  promise "round $round: the kernel, libaio" each libaio by_fio libaio
  promise "round $round: the kernel, io_uring by fio" each fio-io_uring by_fio io_uring
  promise "round $round: the kernel, io_uring by headwater bench" each io-uring: by_us io-uring:/dev/nvme0n1
  promise "round $round: the same, polled" each io-uring:?poll=1 by_us "io-uring:/dev/nvme0n1?poll=1"
  promise "round $round: passthrough" each nvme-ng: by_us nvme-ng:/dev/ng0n1
  promise "round $round: the same, polled" each nvme-ng:?poll=1 by_us "nvme-ng:/dev/ng0n1?poll=1"
  promise "round $round: to our driver" to_vfio
  promise "round $round: our driver" each vfio: by_us vfio:$DEVICE
  promise "round $round: a node takes the SSD" shared
  promise "round $round: attached to it, mediated" each attach: by_us attach:$SOCKET
  promise "round $round: attached to it, with a hardware queue" each attach:?direct=1 by_us "attach:$SOCKET?direct=1"
  promise "round $round: the node releases it" stopped
  promise "round $round: back to the kernel" to_kernel
done

# Rows in the lab's form, and a table of medians, each relative to fio's io_uring.
sort -k2,2 -k3,3n -k1,1 -k4,4n /tmp/rows | awk '
  function end() {
    if (!count) return
    median = samples[int((count + 1) / 2)]
    line[++lines] = way; at[lines] = direction " " depth; value[lines] = median; lowest[lines] = samples[1]; highest[lines] = samples[count]
    if (way == "fio-io_uring") beside[at[lines]] = median
  }
  { key = $2 " " $3 " " $1 }
  key != last { end(); count = 0; last = key; way = $1; direction = $2; depth = $3 }
  { samples[++count] = $4 }
  END {
    end()
    for (n = 1; n <= lines; n++) {
      split(at[n], where, " ")
      printf "{\"figure\":\"2\",\"label\":\"EMULATED\",\"way\":\"%s\",\"direction\":\"%s\",\"depth\":%d,\"iops\":%d,\"lowest\":%d,\"highest\":%d,\"beside_fio_io_uring\":%.3f}\n",
        line[n], where[1], where[2], value[n], lowest[n], highest[n], value[n] / beside[at[n]]
    }
    for (n = 1; n <= lines; n++) {
      if (at[n] != before) printf "\n%s, depth %s\n", substr(at[n], 1, index(at[n], " ") - 1), substr(at[n], index(at[n], " ") + 1)
      before = at[n]
      printf "  %-18s %8d IOPS  %5.2fx\n", line[n], value[n], value[n] / beside[at[n]]
    }
  }'
