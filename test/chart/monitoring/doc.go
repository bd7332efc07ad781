// Package monitoring holds the chart's rules and dashboard against what a plugin's metrics endpoint
// answered, with Prometheus' own parser and query engine. It is a module of its own, since nobody
// else needs Prometheus. The answers in testdata are recorded, and held current, by test/process.
package monitoring
