//! A process of `--compare`: run to its end, or ended with all that it started.
//!
//! On Unix it leads a group of its own, so that a shell's children end with it; elsewhere only the process itself is ended.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often an interrupt and the limit are looked for.
const LOOK: Duration = Duration::from_millis(30);

/// Bytes that are kept of each of its outputs; what follows is read and dropped.
const KEPT: u64 = 16 << 20;

/// How long a process has to end once it is asked to.
const GRACE: Duration = Duration::from_secs(2);

/// What a process came to.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) seconds: f64,
}

/// Why there is no such thing.
pub(super) enum Failed {
    /// The system refuses it.
    Io(std::io::Error),
    /// It took longer than allowed, and was ended.
    Late,
    /// `interrupt` was set, and it was ended.
    Interrupted,
}

impl From<std::io::Error> for Failed {
    fn from(err: std::io::Error) -> Self {
        Self::Io(err)
    }
}

/// Runs `command` to its end, for at most `limit`.
pub(super) fn run(command: &mut Command, limit: Duration, interrupt: &AtomicBool) -> Result<Ended, Failed> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let started = Instant::now();
    let mut child = command.spawn()?;
    let (sender, receiver) = channel();
    let stdout = drain(child.stdout.take(), sender.clone());
    let stderr = drain(child.stderr.take(), sender);
    let why = || match interrupt.load(Ordering::Relaxed) {
        true => Some(Failed::Interrupted),
        false => (started.elapsed() >= limit).then_some(Failed::Late),
    };
    // Both pipes close when it ends, so nothing is lost by looking rarely before.
    let mut wait = LOOK;
    let status = loop {
        if receiver.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            wait = Duration::from_micros(200);
            std::thread::sleep(wait);
            if let Some(status) = child.try_wait()? {
                break status;
            }
        }
        if let Some(why) = why() {
            end(&mut child)?;
            return Err(why);
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    let whole = |it: JoinHandle<Vec<u8>>| it.join().unwrap_or_default();
    Ok(Ended { status, stdout: whole(stdout), stderr: whole(stderr), seconds })
}

/// Reads `pipe` to its end; `closed` is dropped then.
fn drain(
    pipe: Option<impl Read + Send + 'static>,
    closed: std::sync::mpsc::Sender<()>,
) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What cannot be read is missing from the records, which are compared with the other program's.
        let _ = pipe.map(|mut it| {
            it.by_ref().take(KEPT).read_to_end(&mut bytes)?;
            std::io::copy(&mut it, &mut std::io::sink())
        });
        drop(closed);
        bytes
    })
}

/// Asks `child` and all that it started to end, and ends what does not.
fn end(child: &mut Child) -> std::io::Result<()> {
    signal(child, false)?;
    let asked = Instant::now();
    while child.try_wait()?.is_none() && asked.elapsed() < GRACE {
        std::thread::sleep(LOOK);
    }
    signal(child, true)?;
    child.wait().map(|_| ())
}

#[cfg(unix)]
fn signal(child: &mut Child, by_force: bool) -> std::io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process_group};
    let signal = if by_force { Signal::KILL } else { Signal::TERM };
    match kill_process_group(Pid::from_child(child), signal) {
        // All have ended.
        Err(rustix::io::Errno::SRCH) => Ok(()),
        done => Ok(done?),
    }
}

#[cfg(not(unix))]
fn signal(child: &mut Child, _: bool) -> std::io::Result<()> {
    child.kill()
}

#[cfg(all(test, unix))]
mod unit {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn sh(line: &str, limit: Duration, interrupt: bool) -> Result<Ended, Failed> {
        run(Command::new("sh").args(["-c", line]), limit, &AtomicBool::new(interrupt))
    }

    #[test]
    fn a_process_runs_to_its_end() {
        let Ok(done) = sh("echo out; echo err >&2; sleep 0.1; exit 3", GRACE * 30, false) else { panic!() };
        assert_eq!(
            (done.status.code(), &done.stdout[..], &done.stderr[..]),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
        assert!((0.1..60.0).contains(&done.seconds), "{}", done.seconds);
        // It closes its pipes and goes on.
        let Ok(done) = sh("exec >/dev/null 2>&1; sleep 0.1", GRACE * 30, false) else { panic!() };
        assert!(done.status.success() && done.seconds >= 0.1, "{}", done.seconds);
    }

    #[test]
    fn all_that_a_process_started_ends_with_it() {
        let started = Instant::now();
        let file = std::env::temp_dir().join(format!("waste-process-{}", std::process::id()));
        let late = format!("(sleep 1; echo > {}) & sleep 1000", file.display());
        assert!(matches!(sh(&late, Duration::from_millis(100), false), Err(Failed::Late)));
        // One that does not want to end, nor those that it starts from then on.
        let deaf = "trap '' TERM; sleep 1000; sleep 1000";
        assert!(matches!(sh(deaf, GRACE * 1000, true), Err(Failed::Interrupted)));
        assert!(started.elapsed() < GRACE * 20, "{:?}", started.elapsed());
        std::thread::sleep(Duration::from_millis(1500).saturating_sub(started.elapsed()));
        assert!(!file.exists(), "what the shell started went on");
    }
}
