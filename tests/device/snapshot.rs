//! The snapshot of a device, as JSON and as a table.

use super::*;
use plimsoll::device::cpu::CpuDevice;

#[test]
fn a_snapshot_says_who_holds_what_and_what_happened() {
    let (out, reports) = mpsc::channel();
    let device = CpuDevice::start(Readings::Off, Instant::now(), move |report| drop(out.send(report))).unwrap();
    let model = ModelId::new(830_001);
    let send = |order| {
        device.send(order).unwrap();
        reports.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    let loader = |device: &candle_core::Device| Ok(Box::new(DrillModel::new(settings(), device)?) as Box<dyn Model>);
    send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) });
    // 2 MiB of workspace under a ceiling of 1 MiB.
    let need = Need::up_to(Bytes::mib(1));
    send(Order::Run(Run { need, ..serve(model, rows(4, 32), Bytes::ZERO) }));

    let snapshot = device.snapshot().unwrap();
    assert!(snapshot.models[&model].weights.live_bytes >= 8 << 20);
    let json = serde_json::to_value(&snapshot).unwrap();
    let held = &json["models"]["830001"];
    assert_eq!(held["counters"]["steps"], 1);
    assert_eq!(held["counters"]["overruns"], 1);
    assert!(held["counters"]["step_peak_bytes_last"].as_u64().unwrap() >= 2 << 20);
    assert_eq!(held["workspace"]["live_bytes"], 0, "no step runs now");
    let events: Vec<_> = json["events"].as_array().unwrap().iter().map(|event| event["event"].clone()).collect();
    assert_eq!(events, ["loaded", "overrun"]);

    let text = snapshot.render(|model| format!("model {model}"));
    assert!(text.contains("model m830001") && text.contains("8.00 MiB"), "{text}");

    send(Order::Unload { model });
    let after = device.snapshot().unwrap().models[&model];
    assert_eq!((after.weights.live_bytes, after.library.live_bytes, after.counters.unloads), (0, 0, 1));
}
