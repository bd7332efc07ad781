// Package mig tests partitions on the real plugin process, beside a simulated driver that keeps
// the rules of MIG: what is published, what the scheduler gives, what containers get, and what is
// left after the process was killed in the middle.
package mig
