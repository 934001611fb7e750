//! GPUs: whether the driver's library is there, and whether the NICs can reach their memory.

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

pub(super) fn check(machine: &Machine) -> Vec<Finding> {
    let gpus = &machine.gpus;
    if gpus.places.is_empty() && gpus.counted.unwrap_or(0) == 0 {
        return vec![Finding::ok("gpu.driver", "GPUs on the PCI bus", "none: nothing to check")];
    }
    let mut findings = vec![driver(machine)];
    findings.extend(direct(machine));
    findings
}

fn driver(machine: &Machine) -> Finding {
    let gpus = &machine.gpus;
    let looked = "libcuda.so.1 and the GPUs on the PCI bus";
    if let Some(why) = &gpus.refused {
        return Finding::fail(
            "gpu.driver",
            looked,
            format!("{} GPUs, and libcuda.so.1 cannot be used: {why}", gpus.places.len()),
            "run the container with --gpus all (or the site's hook), so that the driver's libraries are mounted; on the host install the driver",
        );
    }
    let counted = gpus.counted.unwrap_or(0);
    Finding::ok(
        "gpu.driver",
        looked,
        format!("{counted} GPUs, driver {}", gpus.driver.as_deref().unwrap_or("unknown")),
    )
}

/// What prevents NICs from reaching GPU memory.
fn direct(machine: &Machine) -> Option<Finding> {
    if !machine.has_fabric() {
        let found = "no NIC can reach GPU memory: it is copied through host memory";
        return Some(Finding::ok("gpu.direct", "GPUDirect RDMA", found));
    }
    if machine.gpus.refused.is_some() {
        return None;
    }
    let looked = |what: &str| what.to_owned();
    if machine.is_ours() && machine.value("IRONRAIL_DEVICE_MEMORY") == Some("0") {
        return Some(Finding::warn(
            "gpu.direct",
            looked("IRONRAIL_DEVICE_MEMORY=0"),
            "IRONRAIL_DEVICE_MEMORY=0 switches GPUDirect off: every byte goes through the host's memory",
            "unset IRONRAIL_DEVICE_MEMORY",
        ));
    }
    if let Some(level) =
        machine.value("NCCL_NET_GDR_LEVEL").filter(|level| ["LOC", "0"].contains(level))
    {
        return Some(Finding::warn(
            "gpu.direct",
            format!("NCCL_NET_GDR_LEVEL={level}"),
            format!(
                "NCCL_NET_GDR_LEVEL={level} switches GPUDirect off: every byte goes through the host's memory"
            ),
            "unset NCCL_NET_GDR_LEVEL: NCCL chooses by the distance between NIC and GPU",
        ));
    }
    let peermem = machine.gpus.modules.iter().any(|module| module == "nvidia_peermem");
    if !machine.gpus.dmabuf && !peermem && machine.cxi.is_empty() {
        return Some(Finding::warn(
            "gpu.direct",
            looked("the driver's DMA-BUFs, and the kernel module nvidia_peermem"),
            format!(
                "driver {} exports no DMA-BUFs, and nvidia_peermem is not loaded: NICs cannot reach GPU memory, and transfers of it take twice as long or longer",
                machine.gpus.driver.as_deref().unwrap_or("unknown")
            ),
            "on the host: modprobe nvidia_peermem, or a driver (open kernel modules, 515 and newer) and kernel (5.12 and newer) with DMA-BUF",
        ));
    }
    if !machine.cxi.is_empty() && !machine.gpus.modules.iter().any(|module| module == "gdrdrv") {
        return Some(Finding::warn(
            "gpu.direct",
            looked("the kernel module gdrdrv"),
            "gdrdrv is not loaded: over cxi Ironrail copies GPU memory through host memory",
            "on the host: install GDRCopy and modprobe gdrdrv",
        ));
    }
    // The properties that the plugin reports decide.
    let said = machine.winner().and_then(|plugin| plugin.devices.as_ref());
    if said.is_some_and(|devices| {
        !devices.is_empty() && devices.iter().all(|device| !device.gpu_memory)
    }) {
        let why = machine.winner().and_then(|plugin| {
            plugin
                .log
                .iter()
                .find(|line| line.text.contains("GPU memory"))
                .map(|line| line.text.clone())
        });
        return Some(Finding::warn(
            "gpu.direct",
            looked("ptrSupport of the plugin's devices"),
            why.unwrap_or_else(|| "the plugin's devices support host memory only".to_owned()),
            "docs/configuration.md, section GPU memory, says what each provider needs",
        ));
    }
    Some(Finding::ok(
        "gpu.direct",
        looked("GPUDirect RDMA"),
        if machine.gpus.dmabuf { "by DMA-BUF" } else { "by nvidia_peermem" },
    ))
}
