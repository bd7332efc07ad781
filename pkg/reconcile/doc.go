// Package reconcile undoes what nobody owns. It holds the records of claims against the API
// server, against what runs on the GPUs, and against things on the node that only a claim can
// account for (CDI specs, partitions, daemons), and undoes by the steps of an unprepare what is
// left over. It is for the plugin's instance that has the lease, at its start and from then on.
//
// What to do is a pure function, Decide. It needs to be sure: an API server that does not answer
// says nothing, a claim that is gone gets time for the kubelet to tear its pod down, and a claim
// whose device a program holds open stays until that ends.
//
// New kinds of state plug in as an Owner. The package must not know the API server, NVML, nor
// what the steps of any kind of device do.
package reconcile
