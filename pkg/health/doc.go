// Package health decides how well a GPU is: it turns what was observed of one (errors that the
// driver reported, readings of its state) into faults, says how bad they are, and when they are
// over. It is for the monitor that feeds it, and for taints, the kubelet's health stream and
// metrics, which all say what its Verdict says. It is pure: it must not know NVML, a clock, files
// or Kubernetes.
//
// # Rules
//
//   - What a fault means is data: see Table.
//   - Faults are kept side by side. So a harmless one never hides or ends a grave one.
//   - A fault of a GPU counts for all its partitions, also for those that are made later; one of a
//     partition counts for that partition alone, and ends with it.
//   - A fault ends when the GPU answers, the driver asks for no recovery of it, its condition is
//     over, and nothing happened for the hold-down time, which doubles each time that the same
//     fault comes back soon. A recovery action that is not known, or that cannot be read, counts
//     as one that is not done.
//   - Faults outlive a restart of the plugin. After a reboot of the machine they count until the
//     GPU has been looked at once.
package health
