// Package measure runs the benchmarks of the plugin on a test bed and gives each result as a value that can
// show itself as Markdown. Every figure that depends on the machine is taken beside a floor in the same
// round, so that ratios hold elsewhere. It does not build or start what it measures but through package bed.
package measure
