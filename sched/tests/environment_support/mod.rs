//! What tests need to change the environment of a process: a child to play in, a seccomp filter, an unprivileged user, file systems.
//!
//! Whatever changes the process is done in a child: the same test binary, told by an environment variable which scenario to play. Each
//! binary that uses this has a test `a_scenario_in_a_child` that plays it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the scenario that a child plays, and the folder that it may use.
const SCENARIO: &str = "ENGRAM_TEST_SCENARIO";
const FOLDER: &str = "ENGRAM_TEST_FOLDER";

pub fn is_root() -> bool {
    // SAFETY: touches no memory.
    unsafe { libc::geteuid() == 0 }
}

/// The scenario that this process is to play, and its folder; `None` in the parent.
pub fn scenario() -> Option<(String, PathBuf)> {
    Some((std::env::var(SCENARIO).ok()?, PathBuf::from(std::env::var_os(FOLDER)?)))
}

/// Plays a scenario in a child process; its output is shown, and its failure is the test's. `prepare` fills the child's folder.
pub fn in_child(scenario: &str, prepare: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    // A child that drops its privileges must still reach the files.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_scenario_in_a_child", "--nocapture", "--test-threads=1"])
        .env(SCENARIO, scenario)
        .env(FOLDER, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // A line that says what is skipped begins a line here, too: `ci/test.sh` looks for it there.
    text.lines().for_each(|line| println!("{}", line.find("SKIP: ").map_or(line, |at| &line[at..])));
    assert!(
        output.status.success() && (text.contains("PLAYED") || text.contains("SKIP:")),
        "{scenario}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Makes the kernel refuse these system calls to this thread and its children.
pub fn install_filter(calls: std::ops::RangeInclusive<u32>, errno: i32) -> io::Result<()> {
    let stmt = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0), // The number of the call.
        libc::sock_filter { jt: 0, jf: 2, ..stmt(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, *calls.start()) },
        libc::sock_filter { jt: 1, jf: 0, ..stmt(libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K, *calls.end()) },
        stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain values, and one structure that outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Becomes an unprivileged user with so much locked memory.
pub fn drop_privileges(user: u32, locked_bytes_max: u64) {
    let limit = libc::rlimit { rlim_cur: locked_bytes_max, rlim_max: locked_bytes_max };
    // SAFETY: plain values, and one structure that outlives the call.
    let done = unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) == 0
            && libc::setgid(user) == 0
            && libc::setuid(user) == 0
    };
    assert!(done, "{}", io::Error::last_os_error());
}

/// A user who has nothing but this process: locked memory and threads are counted by user, and others may run tests as nobody.
pub fn private_user() -> u32 {
    1_000_000 + std::process::id()
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A mount that goes away with it.
pub struct Mounted {
    at: tempfile::TempDir,
    loop_device: Option<String>,
}

impl Mounted {
    pub fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let at = CString::new(self.at.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that outlives the call.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
        if let Some(device) = &self.loop_device {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
    }
}

fn mount(source: &str, kind: &str, loop_device: Option<String>) -> io::Result<Mounted> {
    let mounted = Mounted { at: tempfile::tempdir()?, loop_device };
    let [source, kind] = [source, kind].map(|s| CString::new(s).unwrap());
    let at = CString::new(mounted.at.path().as_os_str().as_bytes()).unwrap();
    // SAFETY: three strings that outlive the call.
    if unsafe { libc::mount(source.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(mounted)
}

/// A file system that refuses `O_DIRECT`; `None`, and a line that says so, where there is none to be had.
pub fn ramfs() -> Option<Mounted> {
    mount("none", "ramfs", None).map_err(|e| println!("SKIP: cannot mount ramfs: {e}")).ok()
}

/// ext4 on a disk with sectors of 4096 bytes, whose image is in `dir`; `None`, and a line that says so, where there is none to be had.
pub fn disk_of_4096(dir: &Path) -> Option<Mounted> {
    if !is_root() {
        println!("SKIP: a loop device needs root");
        return None;
    }
    let image = dir.join("disk.img");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("losetup").args(["--find", "--show", "--sector-size", "4096"]).arg(&image).output();
    let device = match made {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap().trim().to_owned(),
        other => {
            println!("SKIP: no loop device: {other:?}");
            return None;
        }
    };
    let formatted = Command::new("mkfs.ext4").args(["-q", "-F", &device]).output();
    match (formatted, mount(&device, "ext4", Some(device.clone()))) {
        (Ok(_), Ok(mounted)) => Some(mounted),
        (formatted, mounted) => {
            // Once only: a mount that failed has detached the device already, and another may own it by now.
            println!("SKIP: no ext4 on {device}: {formatted:?}, {:?}", mounted.err());
            None
        }
    }
}
