//! A boot of a guest, in QEMU without hardware acceleration, so that it is the same on any machine.
//!
//! The guest has four outputs, each a pipe to a thread of this process: the console and the ports
//! `stdout`, `stderr` and `report`. QEMU alone holds their other ends, so they end when it ends.
//! Its inputs are shares and fw_cfg.

use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::failure::Failure;
use crate::vm::clock;
use crate::vm::console::Console;
use crate::vm::guest_report::{Exit, GuestReport};
use crate::vm::job::Share;

/// The settings of a boot.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    // The machine.
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// This machine's ends of links to another machine.
    pub(crate) links: Vec<Link>,

    // The software.
    pub(crate) kernel_image: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) shares: Vec<Share>,
    /// Files that the guest finds under `opt/ibex/`: name and content.
    pub(crate) files: Vec<(&'static str, String)>,

    // The run.
    pub(crate) time_out: Duration,
    /// The prefix of each line of output, which tells guests apart.
    pub(crate) label: String,
}

/// An end of a link between machines, and the address on it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) mac: String,
}

/// The end of a boot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command ended with this status.
    Exit(u8),
    /// The command did not end in time.
    TimedOut,
    /// The guest reported that it cannot run the command.
    Failed(String),
    /// The guest reported nothing before the command should have started.
    NoBoot(Console),
    /// The guest ended before the command did.
    Died(Console),
}

/// Events that the threads report.
#[derive(Debug)]
enum Event {
    Report(GuestReport),
    /// QEMU has ended.
    Closed,
}

/// A running boot. Dropping it kills QEMU.
#[derive(Debug)]
struct Running {
    child: Child,
    events: Receiver<Event>,
    stdout_bytes: Arc<AtomicU64>,
    stderr_bytes: Arc<AtomicU64>,
    console: Option<JoinHandle<Console>>,
    streams: Vec<JoinHandle<()>>,
}

impl Machine {
    /// Boots once and waits for the end.
    pub(crate) fn run(&self) -> Result<Ending, Failure> {
        let mut running = self.start()?;
        let mut deadline = Instant::now() + BOOT_LIMIT;
        let mut has_started = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match running.events.recv_timeout(left) {
                Ok(Event::Report(GuestReport::Started)) => {
                    has_started = true;
                    deadline = Instant::now() + self.time_out;
                }
                Ok(Event::Report(GuestReport::Exit(exit))) => {
                    running.drain(exit);
                    return Ok(Ending::Exit(exit.status));
                }
                Ok(Event::Report(GuestReport::Failed(reason))) => {
                    return Ok(Ending::Failed(reason));
                }
                Ok(Event::Report(GuestReport::Device(device))) => {
                    eprintln!("{}vm: {device}", self.label);
                }
                Ok(Event::Report(GuestReport::RdmaCore(version))) => {
                    eprintln!("{}vm: rdma-core {version}", self.label);
                }
                Ok(Event::Closed) => {
                    running.emulator_ended_well()?;
                    return Ok(running.without_report(has_started));
                }
                Err(_) if has_started => return Ok(Ending::TimedOut),
                Err(_) => return Ok(running.without_report(has_started)),
            }
        }
    }

    fn start(&self) -> Result<Running, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot start the guest: {error}"));
        // A process started meanwhile would inherit the pipe ends below, and the pipes would not
        // end with this guest.
        let alone = STARTING.lock();
        let mut command = self.command();
        let mut ends = Vec::new();
        let mut readers = Vec::new();
        for name in ["console", "stdout", "stderr", "report"] {
            let (reader, writer) = io::pipe().map_err(failed)?;
            // The descriptor must survive the exec, under its number.
            fcntl_setfd(&writer, FdFlags::empty()).map_err(|error| failed(error.into()))?;
            let (fd, set) = (writer.as_raw_fd(), readers.len() + 1);
            command.arg("-add-fd").arg(format!("fd={fd},set={set}"));
            // Without `append`, QEMU would truncate, which a pipe refuses.
            command
                .arg("-chardev")
                .arg(format!("file,id={name},path=/dev/fdset/{set},append=on"));
            if name == "console" {
                command.args(["-serial", "chardev:console"]);
            } else {
                command
                    .arg("-device")
                    .arg(format!("virtserialport,chardev={name},name={name}"));
            }
            readers.push(reader);
            ends.push(writer);
        }
        let child = command.spawn().map_err(failed)?;
        drop(ends);
        drop(alone);

        let mut readers = readers.into_iter();
        let mut next = || readers.next().expect("there are four");
        let (sender, events) = mpsc::channel();
        let (stdout_bytes, stderr_bytes) = <(Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let console = next();
        let console = thread::spawn(move || Console::read(console));
        let streams = vec![
            self.copy(next(), io::stdout(), &stdout_bytes),
            self.copy(next(), io::stderr(), &stderr_bytes),
            listen(next(), sender),
        ];
        Ok(Running {
            child,
            events,
            stdout_bytes,
            stderr_bytes,
            console: Some(console),
            streams,
        })
    }

    fn command(&self) -> Command {
        // `setpriv` kills the guest if this process is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        command.args("-M q35 -accel tcg,thread=multi -cpu max".split(' '));
        command.arg("-smp").arg(self.cpus.to_string());
        command.arg("-m").arg(self.memory_mib.to_string());
        command.args("-display none -monitor none -no-reboot -nic none".split(' '));
        command.arg("-kernel").arg(&self.kernel_image);
        command.arg("-initrd").arg(&self.initrd);
        let rate = clock::ticks_per_millisecond();
        let rate = rate.map(|ticks| format!(" tsc_early_khz={ticks}"));
        let arguments = format!("{KERNEL_ARGUMENTS}{}", rate.unwrap_or_default());
        command.arg("-append").arg(arguments);
        for (name, content) in &self.files {
            let content = escaped(content);
            command
                .arg("-fw_cfg")
                .arg(format!("name=opt/ibex/{name},string={content}"));
        }
        for Share { tag, here, .. } in &self.shares {
            let here = escaped(here);
            command.arg("-virtfs").arg(format!(
                "local,path={here},mount_tag={tag},security_model=none,readonly=on,multidevs=remap"
            ));
        }
        for Link { socket, mac } in &self.links {
            let fd = socket.as_raw_fd();
            command
                .arg("-netdev")
                .arg(format!("socket,id=link{fd},fd={fd}"));
            command
                .arg("-device")
                .arg(format!("virtio-net-pci,netdev=link{fd},mac={mac}"));
        }
        command.args(["-device", "virtio-serial-pci"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Copies the guest's output as it comes.
    fn copy(
        &self,
        mut from: PipeReader,
        to: impl Write + Send + 'static,
        copied: &Arc<AtomicU64>,
    ) -> JoinHandle<()> {
        let mut to = Labelled::new(to, &self.label);
        let copied = Arc::clone(copied);
        thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                // If the output's reader is gone, the status is still wanted.
                let _ = to.write_all(&buffer[..length]).and_then(|()| to.flush());
                // COPIED, pairs with `Running::drain`, which lets this process end only after this.
                copied.fetch_add(length as u64, Ordering::Release);
            }
        })
    }
}

impl Running {
    /// Waits until all output of the command was passed on.
    fn drain(&self, exit: Exit) {
        let deadline = Instant::now() + DRAIN_LIMIT;
        // COPIED, pairs with `Machine::copy`.
        let is_whole = || {
            self.stdout_bytes.load(Ordering::Acquire) >= exit.stdout_bytes
                && self.stderr_bytes.load(Ordering::Acquire) >= exit.stderr_bytes
        };
        while !is_whole() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Fails if QEMU failed, once it has closed everything. A guest that panics ends QEMU in good
    /// order.
    fn emulator_ended_well(&mut self) -> Result<(), Failure> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(format!(
                "qemu-system-x86_64 failed, {status}; what it said stands above"
            ))),
            Err(error) => Err(Failure::new(format!("qemu-system-x86_64: {error}"))),
        }
    }

    fn without_report(&mut self, has_started: bool) -> Ending {
        let console = self.end();
        if has_started {
            Ending::Died(console)
        } else {
            Ending::NoBoot(console)
        }
    }

    /// Kills QEMU. Returns the console's output.
    fn end(&mut self) -> Console {
        // QEMU may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for stream in mem::take(&mut self.streams) {
            let _ = stream.join();
        }
        let console = self.console.take().map(JoinHandle::join);
        console.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Puts a label before each line.
#[derive(Debug)]
struct Labelled<W> {
    to: W,
    label: String,
    at_start: bool,
}

impl<W: Write> Labelled<W> {
    fn new(to: W, label: &str) -> Self {
        Self {
            to,
            label: label.to_string(),
            at_start: true,
        }
    }
}

impl<W: Write> Write for Labelled<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.label.is_empty() {
            return self.to.write(bytes);
        }
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.at_start {
                self.to.write_all(self.label.as_bytes())?;
            }
            self.to.write_all(line)?;
            self.at_start = line.ends_with(b"\n");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Sends each report, and the end.
fn listen(from: PipeReader, to: Sender<Event>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        for report in lines.filter_map(|line| GuestReport::parse(&line)) {
            // No thread listens after the last one.
            let _ = to.send(Event::Report(report));
        }
        let _ = to.send(Event::Closed);
    })
}

/// Escapes a value among QEMU's options, which a comma would end.
fn escaped(value: &str) -> String {
    value.replace(',', ",,")
}

/// The lock that is held while a guest is started.
static STARTING: Mutex<()> = Mutex::new(());

/// Arguments of the kernel. The console is on the serial line; a panic ends QEMU, which does not
/// reboot.
///
/// A kernel patches itself while it boots, and the emulator now and then lets another CPU run into
/// the breakpoint that guards a patch. So there is no other CPU until `vm/guest` switches it on,
/// and the clock is not patched at all. `no_timer_check`: on a busy machine the timer may come too
/// late to convince the kernel that there is one. Every process has the same addresses, since the
/// emulator translates code for the address at which it runs: starting `true` took 106 to 155 ms
/// with random addresses, and takes 55 to 90.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 panic=-1 quiet mitigations=off tsc=reliable no_timer_check maxcpus=1 norandmaps";

/// Two cores with some other work boot it in 8 s, with much other work in 40 s.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Only a stalled reader in this process delays the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stands_before_each_line_and_no_part_of_one() {
        let mut text = Vec::new();
        let mut labelled = Labelled::new(&mut text, "1| ");
        for part in ["a\nb", "c\n", "\n", "d"] {
            labelled.write_all(part.as_bytes()).unwrap();
        }
        assert_eq!(text, b"1| a\n1| bc\n1| \n1| d");
        let mut text = Vec::new();
        Labelled::new(&mut text, "").write_all(b"a\nb").unwrap();
        assert_eq!(text, b"a\nb");
    }

    #[test]
    fn a_comma_does_not_end_a_value() {
        assert_eq!(escaped("echo a,b"), "echo a,,b");
    }
}
