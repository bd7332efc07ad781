// Package scheduler allocates devices to claims with the scheduler's own allocator library, without a
// scheduler. Tests, the demo and the bench client use it.
//
// [Allocator] is pure: slices, classes and claims in, results or the reason why there is none out.
// [Scheduler] does around it what the scheduler and the claim controller write to the API: claims from templates,
// allocation, reservation, and their end.
//
// Of everything else that a scheduler does (resources, affinity, taints of nodes, preemption,
// priorities, extended resources) it knows nothing, and nothing of any driver. The library has the
// features of a Kubernetes 1.37 scheduler with default gates, see [allocation.Default137].
package scheduler
