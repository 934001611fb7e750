//! The generated layouts against what a C compiler says of the same headers (x86-64 and aarch64 agree).

use std::mem::{offset_of, size_of};

use crate as sys;
use crate::tails::{Grown, fi_mr_attr_2_0, fi_mr_dmabuf};

#[test]
fn sizes_and_offsets_are_those_of_the_headers() {
    assert_eq!(size_of::<sys::fid>(), 24, "fid");
    assert_eq!(size_of::<sys::fi_ops>(), 56, "fi_ops");
    assert_eq!(size_of::<sys::fi_info>(), 120, "fi_info");
    assert_eq!(size_of::<sys::fi_tx_attr>(), 80, "fi_tx_attr");
    assert_eq!(size_of::<sys::fi_rx_attr>(), 64, "fi_rx_attr");
    assert_eq!(size_of::<sys::fi_ep_attr>(), 96, "fi_ep_attr");
    assert_eq!(size_of::<sys::fi_domain_attr>(), 192, "fi_domain_attr");
    assert_eq!(size_of::<sys::fi_fabric_attr>(), 32, "fi_fabric_attr");
    assert_eq!(size_of::<sys::fid_nic>(), 56, "fid_nic");
    assert_eq!(size_of::<sys::fi_device_attr>(), 48, "fi_device_attr");
    assert_eq!(size_of::<sys::fi_bus_attr>(), 12, "fi_bus_attr");
    assert_eq!(size_of::<sys::fi_pci_attr>(), 6, "fi_pci_attr");
    assert_eq!(size_of::<sys::fi_link_attr>(), 40, "fi_link_attr");
    assert_eq!(size_of::<sys::fid_fabric>(), 40, "fid_fabric");
    assert_eq!(size_of::<sys::fid_domain>(), 40, "fid_domain");
    assert_eq!(size_of::<sys::fid_ep>(), 80, "fid_ep");
    assert_eq!(size_of::<sys::fid_mr>(), 40, "fid_mr");
    assert_eq!(size_of::<sys::fid_av>(), 32, "fid_av");
    assert_eq!(size_of::<sys::fid_cq>(), 32, "fid_cq");
    assert_eq!(size_of::<sys::fi_av_attr>(), 48, "fi_av_attr");
    assert_eq!(size_of::<sys::fi_cq_attr>(), 40, "fi_cq_attr");
    assert_eq!(size_of::<sys::fi_mr_attr>(), 80, "fi_mr_attr");
    assert_eq!(size_of::<sys::fi_cq_data_entry>(), 40, "fi_cq_data_entry");
    assert_eq!(size_of::<sys::fi_cq_err_entry>(), 80, "fi_cq_err_entry");
    assert_eq!(size_of::<sys::fi_msg>(), 48, "fi_msg");
    assert_eq!(size_of::<sys::fi_msg_rma>(), 64, "fi_msg_rma");
    assert_eq!(size_of::<sys::fi_rma_iov>(), 24, "fi_rma_iov");
    assert_eq!(size_of::<sys::iovec>(), 16, "iovec");
    assert_eq!(size_of::<sys::fi_context2>(), 64, "fi_context2");
    assert_eq!(size_of::<sys::fi_ops_fabric>(), 56, "fi_ops_fabric");
    assert_eq!(size_of::<sys::fi_ops_domain>(), 96, "fi_ops_domain");
    assert_eq!(size_of::<sys::fi_ops_ep>(), 64, "fi_ops_ep");
    assert_eq!(size_of::<sys::fi_ops_cm>(), 80, "fi_ops_cm");
    assert_eq!(size_of::<sys::fi_ops_msg>(), 80, "fi_ops_msg");
    assert_eq!(size_of::<sys::fi_ops_rma>(), 80, "fi_ops_rma");
    assert_eq!(size_of::<sys::fi_ops_tagged>(), 80, "fi_ops_tagged");
    assert_eq!(size_of::<sys::fi_ops_atomic>(), 112, "fi_ops_atomic");
    assert_eq!(size_of::<sys::fi_ops_mr>(), 32, "fi_ops_mr");
    assert_eq!(size_of::<sys::fi_ops_av>(), 64, "fi_ops_av");
    assert_eq!(size_of::<sys::fi_ops_cq>(), 64, "fi_ops_cq");
    assert_eq!(size_of::<sys::fi_provider>(), 72, "fi_provider");
    assert_eq!(offset_of!(sys::fi_info, caps), 8, "fi_info.caps");
    assert_eq!(offset_of!(sys::fi_info, src_addr), 48, "fi_info.src_addr");
    assert_eq!(offset_of!(sys::fi_info, handle), 64, "fi_info.handle");
    assert_eq!(offset_of!(sys::fi_info, tx_attr), 72, "fi_info.tx_attr");
    assert_eq!(offset_of!(sys::fi_info, domain_attr), 96, "fi_info.domain_attr");
    assert_eq!(offset_of!(sys::fi_info, nic), 112, "fi_info.nic");
    assert_eq!(offset_of!(sys::fi_domain_attr, threading), 16, "fi_domain_attr.threading");
    assert_eq!(offset_of!(sys::fi_domain_attr, mr_mode), 36, "fi_domain_attr.mr_mode");
    assert_eq!(offset_of!(sys::fi_domain_attr, cq_data_size), 48, "fi_domain_attr.cq_data_size");
    assert_eq!(offset_of!(sys::fi_domain_attr, tclass), 184, "fi_domain_attr.tclass");
    assert_eq!(offset_of!(sys::fi_tx_attr, inject_size), 40, "fi_tx_attr.inject_size");
    assert_eq!(offset_of!(sys::fi_tx_attr, tclass), 72, "fi_tx_attr.tclass");
    assert_eq!(offset_of!(sys::fi_ep_attr, max_msg_size), 16, "fi_ep_attr.max_msg_size");
    assert_eq!(offset_of!(sys::fid_mr, mem_desc), 24, "fid_mr.mem_desc");
    assert_eq!(offset_of!(sys::fid_mr, key), 32, "fid_mr.key");
    assert_eq!(offset_of!(sys::fi_mr_attr, requested_key), 32, "fi_mr_attr.requested_key");
    assert_eq!(offset_of!(sys::fi_mr_attr, iface), 64, "fi_mr_attr.iface");
    assert_eq!(offset_of!(sys::fi_mr_attr, device), 72, "fi_mr_attr.device");
    assert_eq!(offset_of!(sys::fid_ep, msg), 40, "fid_ep.msg");
    assert_eq!(offset_of!(sys::fid_ep, rma), 48, "fid_ep.rma");
    assert_eq!(offset_of!(sys::fid_domain, mr), 32, "fid_domain.mr");
    assert_eq!(offset_of!(sys::fi_cq_err_entry, err), 56, "fi_cq_err_entry.err");
    assert_eq!(offset_of!(sys::fi_cq_err_entry, prov_errno), 60, "fi_cq_err_entry.prov_errno");
    assert_eq!(offset_of!(sys::fi_cq_err_entry, err_data), 64, "fi_cq_err_entry.err_data");
    assert_eq!(
        offset_of!(sys::fi_cq_err_entry, err_data_size),
        72,
        "fi_cq_err_entry.err_data_size"
    );
    assert_eq!(offset_of!(sys::fi_cq_data_entry, flags), 8, "fi_cq_data_entry.flags");
    assert_eq!(offset_of!(sys::fi_cq_data_entry, data), 32, "fi_cq_data_entry.data");
    assert_eq!(offset_of!(sys::fi_msg_rma, rma_iov), 32, "fi_msg_rma.rma_iov");
    assert_eq!(offset_of!(sys::fi_msg_rma, context), 48, "fi_msg_rma.context");
    assert_eq!(offset_of!(sys::fi_msg_rma, data), 56, "fi_msg_rma.data");
    assert_eq!(offset_of!(sys::fi_ops_rma, writemsg), 48, "fi_ops_rma.writemsg");
    assert_eq!(offset_of!(sys::fi_ops_rma, writedata), 64, "fi_ops_rma.writedata");
    assert_eq!(offset_of!(sys::fi_ops_rma, injectdata), 72, "fi_ops_rma.injectdata");
    assert_eq!(offset_of!(sys::fi_ops_msg, send), 32, "fi_ops_msg.send");
    assert_eq!(offset_of!(sys::fi_ops_mr, regattr), 24, "fi_ops_mr.regattr");
    assert_eq!(offset_of!(sys::fi_ops_cq, readerr), 24, "fi_ops_cq.readerr");
    assert_eq!(offset_of!(sys::fi_ops_cq, strerror), 56, "fi_ops_cq.strerror");
    assert_eq!(offset_of!(sys::fi_ops_domain, endpoint), 24, "fi_ops_domain.endpoint");
    assert_eq!(offset_of!(sys::fi_ops_cm, getname), 16, "fi_ops_cm.getname");
    assert_eq!(offset_of!(sys::fi_provider, getinfo), 48, "fi_provider.getinfo");
}

#[test]
fn tails_continue_the_structures_of_1_17() {
    assert_eq!(size_of::<fi_mr_dmabuf>(), 32);
    assert_eq!(offset_of!(fi_mr_attr_2_0, hmem_data), size_of::<sys::fi_mr_attr>());
    assert_eq!(size_of::<fi_mr_attr_2_0>(), 112);
    assert!(size_of::<Grown<sys::fi_mr_attr>>() >= size_of::<fi_mr_attr_2_0>());
}

#[test]
fn versions_and_flags_are_where_the_headers_put_them() {
    assert_eq!(sys::version(1, 17), 0x0001_0011);
    assert_eq!(sys::FI_REMOTE_WRITE, 0x2000);
    assert_eq!(sys::FI_REMOTE_CQ_DATA, 0x2_0000);
    assert_eq!(sys::FI_MR_ENDPOINT, 0x200);
    assert_eq!(sys::FI_OPT_EFA_RNR_RETRY, -0x0efa_0000);
    assert_eq!(sys::FI_DELIVERY_COMPLETE, 0x1000_0000);
}
