// Package process runs the real node plugin as a process and speaks to it as its surroundings do:
// the kubelet over its registration and DRA sockets, the API server over HTTPS, Prometheus and
// probes over HTTP and gRPC, the GPU driver through the library of a simulated node. Its tests are
// those of the whole program short of a cluster; its exported part is for other tests and for
// measurements that need the plugin as it really runs.
//
// A [Bed] is what the plugin lives in and outlives it; a [Plugin] is one run of the process.
// Nothing in the program knows that it is tested: crashes and disk faults come from outside,
// through package tracer.
package process
