//! Tests of handles with a cache: requests with byte granularity.

use crate::fake::{buffer, bytes_of, memory, small_config};
use crate::over_handle::{BLOCK, BlockDevice, FIRST, device, facts};
use headwater_host::clock::Nanos;
use headwater_io::cache::{CacheConfig, WritePolicy};
use headwater_io::command::{TransferData, WriteDurability};
use headwater_io::scheduler::SchedulingPolicy;
use headwater_io::{CachePath, CachedHandle, ClientNamespace, Handle, IoRequest, Queue, RequestError};
use headwater_nvme::spec::status::Status;
use std::sync::{Arc, Mutex};

const START: u64 = FIRST * BLOCK as u64;
const BYTES: usize = 200 * BLOCK;

fn cached(device: BlockDevice, facts: &ClientNamespace) -> CachedHandle {
    let handle = Handle::builder(facts).queue(Queue::over(Box::new(device))).build().unwrap();
    CachedHandle::new(handle, facts, small_config(), &mut memory).unwrap()
}

fn at(offset: usize) -> u64 {
    START + u64::try_from(offset).unwrap()
}

fn seen(bytes: &Arc<Mutex<Vec<u8>>>) -> Vec<u8> {
    let from = usize::try_from(START).unwrap();
    bytes.lock().unwrap()[from..from + BYTES].to_vec()
}

#[test]
fn requests_of_any_length_by_either_path_agree_with_an_array_of_bytes() {
    for seed in 0..30 {
        let (device, bytes) = device();
        let mut first = cached(device, &facts());
        let mut second = CachedHandle::join(&first.cache(), &facts());
        let mut wanted = seen(&bytes);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..200 {
            let handle = if random.bool() { &mut first } else { &mut second };
            handle.set_path([CachePath::Cached, CachePath::Direct][usize::from(random.u8(0..4) == 0)]);
            let start = random.usize(0..BYTES / BLOCK) * BLOCK;
            let length = (random.usize(1..20) * BLOCK).min(BYTES - start);
            let byte = random.u8(..);
            match random.u32(0..8) {
                0 => {
                    let request = IoRequest::write_zeroes(at(start), 512, WriteDurability::NamespaceDefault);
                    handle.run(request).unwrap();
                    wanted[start..start + 512].fill(0);
                }
                1 => {
                    let halves = vec![buffer(&vec![byte; 512]), buffer(&vec![byte ^ 1; length])];
                    if start + 512 + length <= BYTES {
                        let request =
                            IoRequest::write_gathered(at(start), halves, WriteDurability::NamespaceDefault);
                        assert!(
                            matches!(handle.run(request).unwrap(), TransferData::Gather(of) if of.len() == 2)
                        );
                        wanted[start..start + 512].fill(byte);
                        wanted[start + 512..start + 512 + length].fill(byte ^ 1);
                    }
                }
                2 => {
                    let (handle, odd) = (&mut *handle, random.usize(1..500));
                    handle.set_path(CachePath::Cached);
                    let odd_length = length - odd;
                    let from = buffer(&vec![byte; odd_length]);
                    handle.write(at(start + odd), from, WriteDurability::NamespaceDefault).unwrap();
                    wanted[start + odd..start + length].fill(byte);
                }
                3 => {
                    let with = buffer(&wanted[start..start + length]);
                    handle.run(IoRequest::compare(at(start), with)).unwrap();
                }
                4 => {
                    handle.write(at(start), buffer(&vec![byte; length]), WriteDurability::Immediate).unwrap();
                    wanted[start..start + length].fill(byte);
                    assert!(seen(&bytes)[start..start + length] == wanted[start..start + length]);
                }
                5 => {
                    handle
                        .write(at(start), buffer(&vec![byte; length]), WriteDurability::NamespaceDefault)
                        .unwrap();
                    wanted[start..start + length].fill(byte);
                }
                _ => {
                    let read = handle.read(at(start), buffer(&vec![0; length])).unwrap();
                    assert!(bytes_of(&read) == wanted[start..start + length], "seed {seed}");
                }
            }
        }
        second.flush().unwrap();
        assert!(seen(&bytes) == wanted, "seed {seed}");
    }
}

#[test]
fn concurrent_requests_complete_once_each_with_their_own_buffers() {
    let (device, _) = device();
    let mut handle = cached(device, &facts());
    let mut left: Vec<u64> = (0..40).collect();
    for &token in &left {
        let bytes = 100 + usize::try_from(token).unwrap();
        handle.submit(IoRequest::read(START + token * 2_000, buffer(&vec![0; bytes])), token).unwrap();
    }
    while let Some(answer) = handle.wait(None).unwrap() {
        let token = answer.completion.token;
        assert_eq!(answer.data.bytes(), 100 + usize::try_from(token).unwrap());
        left.retain(|&other| other != token);
    }
    assert_eq!((left.len(), handle.outstanding()), (0, 0));
}

#[test]
fn invalid_requests_are_refused_with_numbers_and_buffer() {
    let (device, _) = device();
    let mut handle = cached(device, &facts());
    let end = START + u64::try_from(BYTES).unwrap();
    let beyond = handle.submit(IoRequest::read(end - 10, buffer(&[0; 11])), 1).unwrap_err();
    assert_eq!(beyond.error, RequestError::OutOfRange { offset: end - 10, bytes: 11, end });
    assert_eq!(beyond.request.bytes, 11);
    assert!(handle.submit(IoRequest::read(START - 1, buffer(&[0; 1])), 1).is_err());
    handle.set_path(CachePath::Direct);
    let misaligned = handle.submit(IoRequest::read(START + 1, buffer(&[0; 512])), 1).unwrap_err();
    let (offset, bytes) = (START + 1, 512);
    assert_eq!(misaligned.error, RequestError::Misaligned { offset, bytes, block_bytes: 512 });
    let read_only = ClientNamespace { writable: false, ..facts() };
    let mut reader = CachedHandle::join(&handle.cache(), &read_only);
    let refused = reader.write(START, buffer(&[1; 512]), WriteDurability::NamespaceDefault).unwrap_err();
    assert!(refused.data.bytes() == 512 && !reader.write_hit(START, &[1; 512]));
}

#[test]
fn cache_and_policies_change_while_the_handle_is_open() {
    let (device, bytes) = device();
    let mut handle = cached(device, &facts());
    handle.write(START + 1, buffer(&[7; 9]), WriteDurability::NamespaceDefault).unwrap();
    assert_eq!(seen(&bytes)[1], 0xAA, "the write reached the device before its write-back");
    handle.set_policy(WritePolicy::Through);
    handle.write(START + 20, buffer(&[8; 9]), WriteDurability::NamespaceDefault).unwrap();
    assert_eq!(seen(&bytes)[20], 8);
    handle.with_handle(|below| below.set_scheduling(SchedulingPolicy::Fifo));
    handle.resize(8, &mut memory).unwrap();
    assert_eq!(handle.statistics().capacity_bytes, 8 * 4_096);
    handle.set_policy(WritePolicy::Back);
    handle.write(START + 40, buffer(&[9; 9]), WriteDurability::NamespaceDefault).unwrap();
    let other = CachedHandle::join(&handle.cache(), &facts());
    let (handle, error) = handle.into_handle().unwrap_err();
    assert!(error.to_string().contains("other handles"));
    drop(other);
    let mut plain = handle.into_handle().unwrap();
    assert_eq!(seen(&bytes)[40], 9, "removing the cache did not flush it");
    let read = plain.read(START, buffer(&[0; 512])).unwrap();
    let read = bytes_of(&read);
    assert_eq!((read[1], read[20], read[40]), (7, 8, 9));
    let again = CachedHandle::new(plain, &facts(), CacheConfig { pages: 8, ..small_config() }, &mut memory);
    let mut again = again.unwrap();
    assert_eq!(bytes_of(&again.read(START + 40, buffer(&[0; 9])).unwrap()), [9; 9]);
}

#[test]
fn request_with_a_deadline_completes_or_is_cancelled() {
    let (device, _) = device();
    let mut handle = cached(device, &facts());
    let request = IoRequest::read(START + 3, buffer(&[0; 9])).with_timeout(Nanos::ZERO);
    handle.submit(request, 5).unwrap();
    let answer = handle.wait(None).unwrap().unwrap();
    assert_eq!((answer.completion.token, answer.data.bytes()), (5, 9));
    let status = answer.completion.status;
    assert!(status.is_success() || status == Status::ABORT_REQUESTED);
}
