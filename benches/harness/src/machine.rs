//! The machine: what the report has to say about it, and the little we ask of it.

use std::fs;
use std::process::Command;

/// Keeps the calling thread on the processor number `thread`, so that it does not wander between caches.
/// Does nothing where that cannot be done.
pub fn pin(thread: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(core) = cores.get(thread) {
        core_affinity::set_for_current(*core);
    }
}

/// The bytes of memory this process really occupies; `None` where the system does not tell.
pub fn resident() -> Option<u64> {
    let kilobytes = field("/proc/self/smaps_rollup", "Rss:")?;
    Some(kilobytes.split_whitespace().next()?.parse::<u64>().ok()? * 1_024)
}

/// Where the figures come from. To be asked before measuring, which is a load of its own.
pub fn description() -> String {
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let system = said_by("uname", &["-sr"]);
    let compiler = said_by("rustc", &["--version"]);
    let pages = huge_pages().unwrap_or_else(|| "unknown".to_owned());
    let load = load().unwrap_or_else(|| "unknown".to_owned());
    format!(
        "{processor}, {processors} processors, {system}, transparent huge pages: {pages}, {compiler}; \
         load when it began: {load}."
    )
}

/// What follows `name` in a file of lines such as `name : value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim_matches([' ', '\t', ':']).to_owned())
}

/// The mode in brackets, as in `always [madvise] never`.
fn huge_pages() -> Option<String> {
    let modes = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let (_, from) = modes.split_once('[')?;
    Some(from.split_once(']')?.0.to_owned())
}

/// How many were running on average during the last minute.
fn load() -> Option<String> {
    let loads = fs::read_to_string("/proc/loadavg").ok()?;
    Some(loads.split_whitespace().next()?.to_owned())
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(_) => format!("unknown {program}"),
    }
}
