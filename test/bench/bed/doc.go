// Package bed is what the benchmarks run on: an API server (a real one with etcd, or the small
// one of test/kubeapi), simulated GPU machines with a stand-in for the kubelet, and the plugin's
// real program as a process. It starts and ends these and reads what they use; it does not measure time
// and does not know what is measured.
package bed
