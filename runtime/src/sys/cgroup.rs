//! Limits of Linux control groups, versions 1 and 2 and both at once.
//!
//! A limit of any ancestor holds, so every level from this process's group up to the mount point is asked. A container
//! often sees its own group mounted as the root: the part of the path above the mount is then cut off.

use std::collections::BTreeSet;

use super::{ReadText, parse_cpu_list};

/// Folders of each controller, this process's own group first, up to the mount point.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    cpu: Vec<String>,
    cpuset: Vec<String>,
    memory: Vec<String>,
    unified: Vec<String>,
}

/// A mounted hierarchy.
struct Mount<'a> {
    /// The group that the mount point shows.
    root: &'a str,
    point: &'a str,
    is_unified: bool,
    controllers: &'a str,
}

impl Cgroups {
    pub(super) fn read(read: ReadText<'_>) -> Self {
        let Some((mounts, own)) = read("/proc/self/mountinfo").zip(read("/proc/self/cgroup")) else {
            return Self::default();
        };
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(parse_mount).collect();
        let of = |name: &str| {
            let mount =
                mounts.iter().find(|it| !it.is_unified && it.controllers.split(',').any(|it| it == name));
            mount.zip(own_path(&own, name)).map_or_else(Vec::new, |(mount, path)| levels(mount, path))
        };
        let unified = mounts.iter().find(|it| it.is_unified).zip(own_path(&own, ""));
        let unified = unified.map_or_else(Vec::new, |(mount, path)| levels(mount, path));
        Self { cpu: of("cpu"), cpuset: of("cpuset"), memory: of("memory"), unified }
    }

    /// The smallest quota of all levels, in processors.
    pub(super) fn cpu_quota(&self, read: ReadText<'_>) -> Option<f64> {
        let v1 = |folder: &String| {
            let value = |name: &str| read(&format!("{folder}/{name}"))?.trim().parse::<f64>().ok();
            ratio(value("cpu.cfs_quota_us")?, value("cpu.cfs_period_us")?)
        };
        let v2 = |folder: &String| {
            let text = read(&format!("{folder}/cpu.max"))?;
            let (quota, period) = text.trim().split_once(' ')?;
            ratio(quota.parse().ok()?, period.parse().ok()?)
        };
        self.cpu.iter().filter_map(v1).chain(self.unified.iter().filter_map(v2)).min_by(f64::total_cmp)
    }

    /// The smallest memory limit of all levels, in bytes.
    pub(super) fn memory_limit(&self, read: ReadText<'_>) -> Option<u64> {
        let bytes = |path: String| read(&path)?.trim().parse::<u64>().ok();
        let v1 = self.memory.iter().map(|it| format!("{it}/memory.limit_in_bytes"));
        let v2 = self.unified.iter().flat_map(|it| ["max", "high"].map(|name| format!("{it}/memory.{name}")));
        v1.chain(v2).filter_map(bytes).min()
    }

    /// The processors of this process's cpuset.
    pub(super) fn cpuset(&self, read: ReadText<'_>) -> Option<BTreeSet<usize>> {
        let list = |path: String| parse_cpu_list(&read(&path)?);
        let v1 = self.cpuset.first().map(|it| format!("{it}/cpuset.effective_cpus"));
        let v2 = self.unified.first().map(|it| format!("{it}/cpuset.cpus.effective"));
        v1.into_iter().chain(v2).find_map(list)
    }
}

/// Processors' worth of time; `None` for "unlimited", which version 1 writes as −1.
fn ratio(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0 && quota.is_finite()).then(|| quota / period)
}

/// A line of mountinfo: `id parent dev ROOT POINT options… - TYPE source SUPER`.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    let kind = right.next()?;
    let is_unified = kind == "cgroup2";
    let controllers = right.nth(1).unwrap_or("");
    (is_unified || kind == "cgroup")
        .then(|| Some(Mount { root: left.next()?, point: left.next()?, is_unified, controllers }))
        .flatten()
}

/// The path of this process's group under `controller` ("" for the unified hierarchy): lines `id:controllers:path`.
fn own_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        names.split(',').any(|it| it == controller).then_some(path)
    })
}

/// The folders of the group `path` and of all groups above it that the mount shows.
fn levels(mount: &Mount<'_>, path: &str) -> Vec<String> {
    let root = mount.root.trim_end_matches('/');
    let inside = path.strip_prefix(root).filter(|it| it.is_empty() || it.starts_with('/')).unwrap_or("");
    let inside = if inside.split('/').any(|it| it == "..") { "" } else { inside.trim_end_matches('/') };
    let mut folder = format!("{}{inside}", mount.point);
    let mut res = vec![folder.clone()];
    while mount.point.len() < folder.len() {
        folder.truncate(folder.rfind('/').unwrap_or(0).max(mount.point.len()));
        res.push(folder.clone());
    }
    res
}
