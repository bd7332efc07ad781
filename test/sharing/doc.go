// Package sharing tests devices that several programs use: the real plugin process and the real
// supervisor of MPS control daemons, beside a simulated driver that enforces what it is told, and
// programs in containers that run into the limits.
package sharing
