//! Seeded runs of every operation on a flash file, compared with a naive model of flash.

use super::*;

const BLOCKS: u32 = 40;
const STEPS: usize = 1_500;

/// The expected contents of one block.
#[derive(Clone)]
struct BlockModel {
    /// The byte that fills each slot of the file; 0 if it was never written.
    slots: [u8; PAGES_PER_BLOCK],
    /// The next page, once the block was erased by this process.
    next: Option<u8>,
}

impl BlockModel {
    fn page(&self, number: u8) -> Option<u8> {
        let fill = self.slots[usize::from(number)];
        (self.next.is_none_or(|next| number < next) && fill != 0).then_some(fill)
    }
}

fn run(seed: u64, way: IoPath) {
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = way.directory();
    let mut media = create(&directory, BLOCKS, way.options);
    let mut model = vec![BlockModel { slots: [0; PAGES_PER_BLOCK], next: Some(0) }; BLOCKS as usize];
    for step in 0..STEPS {
        let block = random.u32(0..BLOCKS);
        let index = block as usize;
        match random.u32(0..100) {
            0..50 => program_some(&mut media, &mut model[index], block, &mut random),
            50..80 => {
                let number = random.u8(0..64);
                let expected = model[index].page(number);
                assert_eq!(read(&mut media, page(block, number)), expected, "seed {seed} step {step}");
            }
            80..92 => {
                erase(&mut media, block);
                model[index].next = Some(0);
            }
            92..98 => flush(&mut media),
            _ => {
                flush(&mut media);
                drop(media);
                media = FileMedia::open(directory.path(), way.options).unwrap();
                model.iter_mut().for_each(|block| block.next = None);
            }
        }
    }
    flush(&mut media);
    drop(media);
    model.iter_mut().for_each(|block| block.next = None);
    let mut media = FileMedia::open(directory.path(), way.options).unwrap();
    for block in 0..BLOCKS {
        for number in 0..64 {
            let expected = model[block as usize].page(number);
            assert_eq!(read(&mut media, page(block, number)), expected, "seed {seed} at the end");
        }
    }
}

/// Programs a few pages of a block back to back, sometimes with a poll between, and sometimes breaks a rule.
fn program_some(media: &mut FileMedia, model: &mut BlockModel, block: u32, random: &mut fastrand::Rng) {
    let Some(next) = model.next else {
        let rule = RefusalReason::Rule(NandRule::NotErased);
        assert_eq!(refusal(media, program(page(block, random.u8(0..64)), 1)), rule);
        return;
    };
    let count = random.u8(1..9).min(64 - next);
    let mut done = Vec::new();
    for number in next..next + count {
        let fill = random.u8(1..);
        submit(media, u64::from(number), program(page(block, number), fill));
        model.slots[usize::from(number)] = fill;
        if random.u32(0..4) == 0 {
            media.poll(Nanos::ZERO, &mut done);
        }
    }
    model.next = Some(next + count);
    done.extend(drain(media));
    assert_eq!(done.len(), usize::from(count));
    assert!(done.iter().all(|done| done.result == Ok(PageState::Programmed)));
    if next > 0 {
        let rule = RefusalReason::Rule(NandRule::ProgrammedTwice);
        assert_eq!(refusal(media, program(page(block, next - 1), 1)), rule);
    }
}

#[expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]
#[test]
fn a_long_run_agrees_with_the_model_on_every_io_path() {
    for way in io_paths() {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed} {way:?}");
        run(seed, way);
    }
}
