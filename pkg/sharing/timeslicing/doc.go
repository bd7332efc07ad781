// Package timeslicing sets how long the turns of programs that share a GPU are: the step
// "time-slice" of a claim and its undo. It is for the prepare engine. Only claims that ask for an
// interval cause anything; the first claim on a GPU sets it, the last puts it back to the
// driver's default, and a claim with another wish than those that are there is refused. It must
// not know the API server, how claims are decoded, or the other ways of sharing.
package timeslicing
