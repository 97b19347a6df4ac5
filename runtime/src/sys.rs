//! What the operating system says about processors and memory.

/// Pins the calling thread to processor `cpu`; a refusal is not an error: the thread then runs where the system puts it.
pub fn pin_thread(cpu: usize) {
    #[cfg(target_os = "linux")]
    {
        let mut set = rustix::thread::CpuSet::new();
        if cpu < rustix::thread::CpuSet::MAX_CPU {
            set.set(cpu);
            let _refused = rustix::thread::sched_setaffinity(None, &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}
