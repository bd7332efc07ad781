// Package prepare carries out plans: it makes the node ready for a claim and undoes all of it
// again. It is for the kubelet plugin.
//
// What is done to the node is a list of steps, and the journal knows of each before it is done.
// So rollback of a failed prepare, unprepare, the way on after a crash and the removal of
// orphans are one thing: the steps of a record, undone in reverse.
//
// Order of a prepare: lock of the claim, record, locks of its GPUs, nobody else holds them,
// holder files, journal, steps, journal, CDI spec, answer. Holder files come before the journal
// and count only together with a record; the CDI spec comes after the journal and is made again
// whenever it is not what it must be. So a crash between any two of these leaves nothing that
// blocks anybody and nothing without a record but an empty claim on a GPU that does not count.
//
// A claim without steps has one durable write to prepare and one to unprepare.
//
// An unprepare needs the claim's UID and nothing else: no API server, no claim object, no GPU
// driver beyond what the steps of the record themselves need.
//
// The package must not know the API server, NVML or what the steps of any kind of device do.
package prepare
