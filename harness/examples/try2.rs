use ibex_harness::check::*;
use std::time::Instant;
fn main() {
    for size in [64usize, 65536, 1<<20] {
        let mut b = vec![0u8; size];
        let n = (2u64<<30) / size as u64 / 4;
        let t = Instant::now();
        for s in 0..n { fill(s, std::hint::black_box(&mut b)); }
        let f = t.elapsed();
        fill(1, &mut b);
        let mut tally = Tally::default();
        let t = Instant::now();
        for _ in 0..n { tally.message(1, size, std::hint::black_box(&b)); }
        let v = t.elapsed();
        let gb = (n * size as u64) as f64/1e9;
        println!("{size}: fill {:.2} ns {:.1} GB/s verify {:.2} ns {:.1} GB/s", f.as_nanos() as f64/n as f64, gb/f.as_secs_f64(), v.as_nanos() as f64/n as f64, gb/v.as_secs_f64());
    }
}
