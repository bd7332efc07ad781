// Package remedy resets GPUs that are ill, whose driver asks for a reset, and that nobody uses. It is
// for the agent, which runs it in the one instance that publishes, where an administrator wants it.
// It must not know how faults are found or what ends them.
//
// A reset ends all that runs on a GPU, and can end more than that. So it is done only where nothing
// forbids it: no claim of any kind has the GPU, no program uses it, it is not cut into partitions,
// and its NVLinks do not join it to GPUs that would have to be reset with it. The lock of the GPU
// is held from the question to the end, so that no claim gets it meanwhile.
//
// What is done is noted before it is done. A reset has no undo; what a process that was killed
// leaves is a note, which counts as an attempt. After a few attempts that did not help the GPU is
// left to people.
package remedy
