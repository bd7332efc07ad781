// Package control runs the GPU driver's programs of MPS: the control daemon, which starts
// servers, and its front end, by which commands reach it. It is for the supervisor.
//
// Each daemon has a view of the file system of its own, in which its pipe directory and its
// shared memory are where its clients have theirs. The programs are the driver's, run with the C
// library of this image; of the host's libraries they get only the driver's.
//
// What runs is found in /proc by a variable that every process of a daemon inherits: there is no
// file with a process number that could be wrong.
//
// The package must not know why a daemon is wanted.
package control
