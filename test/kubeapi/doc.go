// Package kubeapi is a small Kubernetes API server for tests and for the demo: real HTTP, real
// encodings, LIST and WATCH, kept in memory. A plugin, a client or a command in any process reaches
// it with an ordinary kubeconfig.
//
// It serves the resources that a DRA driver and the stand-ins for scheduler and kubelet touch:
// claims, claim templates, slices, classes, taint rules, nodes, pods, namespaces, leases, config
// maps and events. What a
// client can observe of storage is kept: names from generateName, UIDs, one rising resourceVersion,
// generations, optimistic concurrency, preconditions, finalizers, selectors, bookmarks, streamed
// initial lists, expiry of old versions, and the four kinds of patch.
//
// It knows nothing of any driver. It does not default or validate the way the real API server does,
// does not authorize, collects no garbage, and gives pods no grace period: tests of those need a real cluster. What a
// real cluster makes hard is easy here: [Server.Inject] makes requests fail, hang or lose their
// answer, [Server.DropWatches] and [Server.Compact] break watches, [Server.Away] takes the server off
// the network, and [Server.Requests] tells what was asked.
package kubeapi
