// Package explain says why claims do not fit: for each node and request, how many devices each
// step of the scheduler's choice removed, the first step that is decisive, and the nearest change
// with which they would fit. It is for the commands explain and plan. It is pure, and must not know
// where the objects come from.
//
// # How
//
// Selectors are evaluated with the scheduler's CEL, device by device; taints, owners, counters and
// constraints are counted. What counting shows to be impossible is answered without a search. Only
// what may fit is given to the scheduler's own allocator, for a bounded time: an allocator that is
// asked for one device more than there are may search for minutes, and a scheduler then gives up.
package explain
