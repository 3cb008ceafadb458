//! `ibex doctor` on machines that each have one defect: it is named with its remedy.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::machine::{Machine, code, ibex, page};
use ibex::{Node, Security, SharedSecret};

/// A defect, and what is said of it.
struct Case {
    plant: fn(&Machine),
    check: &'static str,
    severity: &'static str,
    seen: &'static str,
    mend: &'static str,
}

const CARD: &str = "sys/bus/pci/devices/0000:3b:00.0";
const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

/// The defects of a machine with a card.
const CASES: &[Case] = &[
    Case {
        plant: |machine| {
            let other = "sys/class/infiniband/mlx5_1";
            machine.write(&format!("{other}/board_id"), "MT_0000000080");
            machine.write(&format!("{other}/fw_ver"), "16.26.1040");
            machine.link(
                &format!("{other}/device"),
                "../../../bus/pci/devices/0000:3b:00.0",
            );
        },
        check: "firmware",
        severity: "warning",
        seen: "mlx5_0 has firmware 16.35.4030, and mlx5_1 of the same board 16.26.1040",
        mend: "mlxfwmanager",
    },
    Case {
        plant: |machine| {
            machine.remove(&format!("{CARD}/driver"));
            machine.remove("sys/class/infiniband/mlx5_0");
        },
        check: "pci-driver",
        severity: "problem",
        seen: "0000:3b:00.0 (15b3:1017) can do RDMA and has no driver",
        mend: "modprobe -a mlx5_core mlx5_ib",
    },
    Case {
        plant: |machine| {
            machine.link(&format!("{CARD}/driver"), "../../drivers/vfio-pci");
            machine.remove("sys/class/infiniband/mlx5_0");
        },
        check: "pci-driver",
        severity: "problem",
        seen: "is held by vfio-pci",
        mend: "/sys/bus/pci/drivers/vfio-pci/unbind",
    },
    Case {
        plant: |machine| {
            machine.remove(&format!("{CARD}/infiniband"));
            machine.remove("sys/class/infiniband/mlx5_0");
        },
        check: "rdma-driver",
        severity: "problem",
        seen: "has the driver mlx5_core, and no RDMA device",
        mend: "modprobe -a mlx5_core mlx5_ib",
    },
    Case {
        plant: |machine| machine.remove("sys/class/infiniband_verbs"),
        check: "ib-uverbs",
        severity: "problem",
        seen: "ib_uverbs is not loaded",
        mend: "modprobe ib_uverbs",
    },
    Case {
        plant: |machine| machine.remove("dev/infiniband"),
        check: "device-files",
        severity: "problem",
        seen: "/dev/infiniband/uverbs0 is missing",
        mend: "--device=/dev/infiniband",
    },
    Case {
        plant: |machine| machine.remove("usr/lib"),
        check: "libibverbs",
        severity: "problem",
        seen: "no libibverbs.so.1",
        mend: "apt install libibverbs1",
    },
    Case {
        plant: |machine| machine.remove("etc/libibverbs.d/mlx5.driver"),
        check: "provider",
        severity: "problem",
        seen: "no provider library mlx5, which mlx5_0 needs",
        mend: "apt install ibverbs-providers",
    },
    Case {
        plant: |machine| {
            machine.write(&format!("{PORT}/state"), "1: DOWN");
            machine.write(&format!("{PORT}/phys_state"), "3: Disabled");
        },
        check: "port-state",
        severity: "problem",
        seen: "mlx5_0 port 1 is DOWN, not ACTIVE (physically Disabled)",
        mend: "ip link set eth4 up",
    },
    Case {
        plant: |machine| {
            machine.write(&format!("{PORT}/link_layer"), "InfiniBand");
            machine.write(&format!("{PORT}/state"), "2: INIT");
        },
        check: "port-state",
        severity: "problem",
        seen: "mlx5_0 port 1 is INIT",
        mend: "systemctl start opensm",
    },
    Case {
        plant: |machine| machine.remove(&format!("{PORT}/gids/1")),
        check: "gid-table",
        severity: "problem",
        seen: "mlx5_0 port 1 has only link-local GIDs",
        mend: "ip address add ADDRESS/LENGTH dev eth4",
    },
    Case {
        plant: |machine| machine.remove(&format!("{PORT}/gids")),
        check: "gid-table",
        severity: "problem",
        seen: "The GID table of mlx5_0 port 1 is empty",
        mend: "ip address add",
    },
    Case {
        plant: |machine| machine.write(&format!("{PORT}/gid_attrs/types/1"), "IB/RoCE v1"),
        check: "gid-table",
        severity: "warning",
        seen: "only GIDs of RoCE v1",
        mend: "cma_roce_mode -d mlx5_0 -p 1 -m 2",
    },
    Case {
        plant: |machine| machine.write("sys/class/net/eth4/mtu", "1500"),
        check: "mtu",
        severity: "warning",
        seen: "eth4 of mlx5_0 port 1 has MTU 1500, so a packet of RDMA carries 1024 bytes of 4096",
        mend: "ip link set eth4 mtu 4200",
    },
    Case {
        plant: |machine| machine.write("sys/class/net/eth4/mtu", "300"),
        check: "mtu",
        severity: "problem",
        seen: "carries nothing",
        mend: "ip link set eth4 mtu 4200",
    },
    Case {
        plant: |machine| machine.write(&format!("{PORT}/pkeys/0"), "0x7fff"),
        check: "p-key",
        severity: "warning",
        seen: "mlx5_0 port 1 has only limited membership: P_Keys 0x7fff",
        mend: "ALL=full",
    },
    Case {
        plant: |machine| machine.write(&format!("{PORT}/pkeys/0"), "0x0000"),
        check: "p-key",
        severity: "problem",
        seen: "partition keys of mlx5_0 port 1 is empty",
        mend: "partitions.conf",
    },
    Case {
        plant: |machine| machine.limit("Max locked memory", "65536"),
        check: "memlock",
        severity: "problem",
        seen: "may lock 64 KiB",
        mend: "LimitMEMLOCK=infinity",
    },
    Case {
        plant: |machine| {
            machine.write("proc/sys/vm/memfd_noexec", "2");
            machine.write("proc/sys/kernel/osrelease", "6.5.0-14-generic");
        },
        check: "memfd",
        severity: "problem",
        seen: "vm.memfd_noexec is 2",
        mend: "sysctl vm.memfd_noexec=1",
    },
    Case {
        plant: |machine| machine.limit("Max file size", "1048576"),
        check: "memfd",
        severity: "problem",
        seen: "1 MiB at most (RLIMIT_FSIZE)",
        mend: "ulimit -f unlimited",
    },
    Case {
        plant: |machine| machine.write("sys/fs/cgroup/memory.max", "67108864"),
        check: "memory-limit",
        severity: "warning",
        seen: "has 64 MiB of memory",
        mend: "--memory=1g",
    },
    Case {
        plant: |machine| {
            machine.write(
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always madvise [never]",
            );
        },
        check: "huge-pages",
        severity: "warning",
        seen: "no transparent huge pages",
        mend: "echo madvise",
    },
    Case {
        plant: |machine| machine.remove("proc/sys/kernel/random/boot_id"),
        check: "boot-id",
        severity: "problem",
        seen: "boot_id cannot be read",
        mend: "mount /proc",
    },
    Case {
        plant: |machine| {
            machine.write("proc/self/status", "Uid:\t65534\t65534\t65534\t65534");
            machine.write("proc/self/uid_map", "0 100000 65536");
        },
        check: "user",
        severity: "problem",
        seen: "shows this user as 65534",
        mend: "--userns=host",
    },
    Case {
        plant: |machine| {
            for kind in ["pid", "user", "ipc"] {
                machine.link(
                    &format!("proc/self/ns/{kind}"),
                    &format!("{kind}:[4026532281]"),
                );
            }
        },
        check: "namespaces",
        severity: "warning",
        seen: "its PID, user, IPC namespace is not the host's",
        mend: "--network=container:NAME",
    },
    Case {
        plant: |machine| {
            machine.write(
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave",
            );
        },
        check: "cpu-governor",
        severity: "warning",
        seen: "governor is powersave",
        mend: "cpupower frequency-set -g performance",
    },
    Case {
        plant: |machine| {
            let file = "sys/devices/system/clocksource/clocksource0/current_clocksource";
            machine.write(file, "hpet");
        },
        check: "clock-source",
        severity: "warning",
        seen: "clock source is hpet",
        mend: "echo tsc",
    },
    Case {
        plant: |machine| machine.limit("Max open files", "256"),
        check: "descriptors",
        severity: "warning",
        seen: "may have 256 descriptors",
        mend: "ulimit -n 65536",
    },
];

#[test]
fn each_defect_is_named_with_its_remedy() {
    for case in CASES {
        let machine = Machine::with_card();
        (case.plant)(&machine);
        let (code, said) = machine.json(&["doctor"]);
        let findings = said["findings"].as_array().expect("findings");
        // The defect has no other finding beside its own.
        assert_eq!(findings.len(), 1, "{}: {said:#}", case.check);
        let text = |field: &str| findings[0][field].as_str().expect("text").to_owned();
        assert_eq!(text("check"), case.check);
        assert_eq!(text("severity"), case.severity, "{}", case.seen);
        assert!(text("seen").contains(case.seen), "{}", text("seen"));
        assert!(text("mend").contains(case.mend), "{}", text("mend"));
        assert!(text("why").len() > 20, "{}", text("why"));
        assert_eq!(
            code,
            if case.severity == "problem" { 3 } else { 0 },
            "{}",
            case.check
        );
        let page = page(&machine.run(&["doctor"]));
        let head = format!("{} {}\n  seen  ", case.severity, case.check);
        assert!(page.contains(&head), "{page}");
    }
}

#[test]
fn machines_that_are_well_have_no_finding() {
    for machine in [Machine::bare(), Machine::with_card()] {
        let (code, said) = machine.json(&["doctor"]);
        assert_eq!(code, 0);
        assert_eq!(
            said["findings"].as_array().map(Vec::len),
            Some(0),
            "{said:#}"
        );
        assert!(page(&machine.run(&["doctor"])).ends_with("\n0 problems, 0 warnings\n"));
    }
}

#[test]
fn limits_that_hinder_nobody_are_no_finding() {
    let machine = Machine::with_card();
    machine.limit("Max locked memory", "65536");
    machine.write(
        "proc/self/status",
        "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff",
    );
    // Linux 6.6 and later accept memory files under this setting.
    machine.write("proc/sys/vm/memfd_noexec", "2");
    machine.write("proc/sys/kernel/yama/ptrace_scope", "1");
    machine.write(
        "proc/self/mounts",
        "proc /proc proc rw,hidepid=invisible 0 0",
    );
    let (code, said) = machine.json(&["doctor"]);
    assert_eq!((code, &said["findings"]), (0, &serde_json::json!([])));
    let fine = said["fine"].as_array().expect("checks");
    let ptrace = fine
        .iter()
        .find(|fine| fine["check"] == "ptrace")
        .expect("the check");
    let text = ptrace["text"].as_str().expect("text");
    assert!(
        text.contains("hidepid of /proc and kernel.yama.ptrace_scope=1: no obstacle"),
        "{text}"
    );
}

#[test]
fn a_node_is_reached_and_its_fabric_told() {
    let node = Node::listen("127.0.0.1:0").expect("a node");
    let address = node.local_addr().expect("an address").to_string();
    let (code, said) = Machine::bare().json(&["doctor", "--to", &address]);
    assert_eq!(code, 0, "{said:#}");
    assert_eq!(said["to"]["addresses"][0]["outcome"], "connected");
    let reason = said["to"]["session"]["reason"].as_str().expect("a reason");
    assert!(!reason.is_empty());
    let text = page(&Machine::bare().run(&["doctor", "--to", &address]));
    assert!(text.contains(&format!(": {reason}\n")), "{text}");
}

#[test]
fn a_node_with_security_takes_who_proves_itself() {
    let machine = Machine::bare();
    let secret = machine.folder().join("cluster.key");
    let file = secret.to_str().expect("text");
    assert_eq!(code(&ibex(&["keygen", "secret", file])), 0);
    let security = Security::shared_secret(SharedSecret::from_file(&secret).expect("the secret"));
    let node = Node::builder()
        .listen("127.0.0.1:0")
        .security(security)
        .build()
        .expect("a node");
    let address = node.local_addr().expect("an address").to_string();

    let (code, said) = machine.json(&["doctor", "--to", &address]);
    assert_eq!(
        (code, &said["findings"][0]["check"]),
        (3, &"session".into()),
        "{said:#}"
    );
    let mend = said["findings"][0]["mend"].as_str().expect("text");
    assert!(mend.contains("--secret"), "{mend}");

    let (code, said) = machine.json(&["doctor", "--to", &address, "--secret", file]);
    assert_eq!((code, &said["findings"]), (0, &serde_json::json!([])));
    assert!(said["to"]["session"]["fabric"].is_string(), "{said:#}");
}

#[test]
fn a_certificate_says_how_long_it_is_valid() {
    let machine = Machine::bare();
    let folder = machine.folder().to_str().expect("text");
    let doctor = |name: &str, days: &str| {
        let make = ["keygen", "node", name, "--folder", folder, "--days", days];
        assert_eq!(code(&ibex(&make)), 0);
        let file = |end: &str| format!("{folder}/{end}");
        let (chain, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        let authorities = file("ca.pem");
        let identity = [
            "--certificate",
            &chain,
            "--key",
            &key,
            "--authorities",
            &authorities,
        ];
        machine.json(&[&["doctor"], &identity[..]].concat())
    };
    assert_eq!(code(&ibex(&["keygen", "ca", "--folder", folder])), 0);
    let (code, said) = doctor("short", "5");
    assert_eq!(
        (code, &said["findings"][0]["check"]),
        (0, &"identity".into())
    );
    let mend = said["findings"][0]["mend"].as_str().expect("text");
    assert!(mend.contains("reload_certificates"), "{mend}");
    let (code, said) = doctor("long", "200");
    assert_eq!(
        (code, &said["findings"]),
        (0, &serde_json::json!([])),
        "{said:#}"
    );
}

#[test]
fn a_way_that_is_closed_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    // A process that another test has just forked may have the port open for a moment.
    let began = Instant::now();
    let said = loop {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "somebody listens there"
        );
        let (exit, said) = Machine::bare().json(&["doctor", "--to", &address]);
        match said["to"]["addresses"][0]["outcome"].as_str() {
            Some("connected") => {}
            outcome => {
                assert_eq!((exit, outcome), (3, Some("refused")), "{said:#}");
                break said;
            }
        }
    };
    assert_eq!(said["findings"][0]["check"], "connection");
    let mend = said["findings"][0]["mend"].as_str().expect("text");
    assert!(mend.contains("ss -ltn"), "{mend}");

    let to = "no.such.host.invalid:7000";
    let (exit, said) = Machine::bare().json(&["doctor", "--to", to]);
    assert_eq!((exit, &said["findings"][0]["check"]), (3, &"name".into()));
    let found = said["findings"][0]["seen"].as_str().expect("text");
    assert!(found.contains("is not found"), "{found}");
    let output = ibex(&["doctor", "--to", "host"]);
    assert_eq!(code(&output), 2, "{output:?}");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("the port is missing: give HOST:PORT"), "{why}");
}

#[test]
fn a_program_that_is_no_node_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        while let Ok((connection, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut &connection, b"SSH-2.0-OpenSSH_9.2\r\n");
        }
    });
    let (code, said) = Machine::bare().json(&["doctor", "--to", &address]);
    assert_eq!(
        (code, &said["findings"][0]["check"]),
        (3, &"session".into()),
        "{said:#}"
    );
    assert_eq!(said["to"]["addresses"][0]["outcome"], "connected");
}

#[test]
fn the_report_names_nobody() {
    let machine = Machine::with_card();
    machine.write("etc/passwd", "ann:x:1000:1000::/home/ann:/bin/sh");
    let report = machine.folder().join("report.txt");
    let file = report.to_str().expect("text");
    let output = machine.run(&[
        "doctor",
        "--report",
        file,
        "--to",
        "no.such.host.invalid:7000",
    ]);
    assert_eq!(code(&output), 3);
    let text = fs::read_to_string(&report).expect("the report");
    for secret in [
        "storage-17",
        "192.0.2.7",
        "506b:4b03",
        "526b:4bff",
        "no.such.host",
        "ann ",
    ] {
        assert!(!text.contains(secret), "{secret} is in\n{text}");
    }
    for part in [
        "mlx5_0",
        "16.35.4030",
        "<guid-1>",
        "<address-2>",
        "<host-1>:7000",
        "0000:3b:00.0",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let mode = fs::metadata(&report)
        .expect("the report")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let output = ibex(&["doctor", "--report", "/no/such/folder/report.txt"]);
    assert_eq!(code(&output), 1, "{output:?}");
}
