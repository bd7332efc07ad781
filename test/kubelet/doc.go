// Package kubelet stands in for the kubelet's side of Dynamic Resource Allocation: it finds plugins by
// their registration sockets, calls them over their DRA sockets, follows their health streams, and
// deletes their ResourceSlices when the real kubelet would. Tests, the demo and the bench client use
// it against a plugin in any process.
//
// What it does follows kubelet 1.37: first version in the plugin's list that both know, one connection
// per endpoint that is kept open and watched, the newest connected instance gets the calls, 45 s for a
// call, slices wiped at start and after 30 s without any connected instance. Two things differ on
// purpose: a socket is handled when it appears instead of at the next turn of a one-second loop, and
// calls fail at once instead of being tried again after a minute.
//
// It knows no driver and runs no containers. [Kubelet.PreparePod] does the kubelet's bookkeeping of
// claims and pods; [Kubelet.Prepare] and [Kubelet.Unprepare] are the bare calls.
package kubelet
