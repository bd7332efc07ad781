// Package takeover takes over the claims that NVIDIA's published DRA driver had prepared on a
// node, from the checkpoint file that it left, so that the drivers can be switched while pods
// run: their devices are kept from others until they end, and the names that the other driver
// gave to devices are understood in their claims. It is for the plugin's first
// start, and for later looks at the node while devices of such claims are missing.
//
// What the other driver did to GPUs beyond handing them out (MPS daemons, time slices, partitions)
// is not in its checkpoint in a form that could be undone, and stays. Its CDI specs go with their claims. The package must not know
// NVML or the API server.
package takeover
