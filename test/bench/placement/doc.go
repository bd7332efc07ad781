// Package placement studies where partitions of GPUs go. The scheduler takes the first device of
// a node that fits, in the order in which the driver publishes them; the order is therefore the
// only say that a driver has, and it decides how much is accepted before a GPU is in pieces. The
// package replays random loads on the slices that the driver publishes, with the published order,
// with other orders, and with choosers that are free to pick any device, and gives the accepted
// share of the demanded compute slices.
//
// A replay with the scheduler's own allocator takes a thousand times longer than one with the
// first fit of this package, and both choose alike: the package's test holds every choice of the
// one against the other. It must not know how slices come about.
package placement
