// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// printSummaries prints a row for each workload and contender.
func printSummaries(out io.Writer, summaries []summary) error {
	rows := [][]string{{
		"WORKLOAD", "CONTENDER", "FIRST", "SECONDS", "DONE", "PODS/S", "MADE", "CALLS/POD", "REJECTED", "TO CLOSED",
		"API CPU", "API MB", "OUR CPU", "OUR MB", "CLIENT CPU", "LOWEST", "NEEDED", "BELOW",
	}}
	for _, s := range summaries {
		if s.Failed == s.Drains {
			row := slices.Repeat([]string{"-"}, len(rows[0]))
			row[0], row[1] = s.Workload, s.Contender+" (not done)"
			rows = append(rows, row)
			continue
		}
		lowest, needed, below := "-", "-", "-"
		if s.Budgets > 0 {
			lowest, needed, below = percent(s.LowestShare), percent(s.NeededShare), fmt.Sprint(s.Below)
		}
		name := s.Contender
		if s.Failed > 0 {
			name += fmt.Sprintf(" (%d of %d failed)", s.Failed, s.Drains)
		}
		rows = append(rows, []string{
			s.Workload, name, seconds(s.FirstSeconds), seconds(s.Seconds), seconds(s.DoneSeconds),
			fmt.Sprintf("%.1f", s.PodsPerSecond), fmt.Sprintf("%.0f", s.Created), fmt.Sprintf("%.2f", s.CallsPerPod),
			fmt.Sprintf("%.0f (%s)", s.Rejected, percent(s.RejectedShare)), fmt.Sprint(s.ToClosed),
			seconds(s.Host.CPUSeconds), megabytes(s.Host.PeakBytes), seconds(s.Server.CPUSeconds),
			megabytes(s.Server.PeakBytes), seconds(s.ClientCPUSeconds), lowest, needed, below,
		})
	}
	return printRows(out, rows)
}

// printGoals prints whether each goal was kept.
func printGoals(out io.Writer, goals []goal) error {
	rows := [][]string{{"WORKLOAD", "GOAL", "MEASURED", "WANTED", "RESULT"}}
	for _, g := range goals {
		wanted, kept := fmt.Sprintf(">= %.4g", g.Bound), "kept"
		if g.Upper {
			wanted = fmt.Sprintf("<= %.4g", g.Bound)
		}
		if !g.Kept {
			kept = "MISSED"
		}
		rows = append(rows, []string{g.Workload, g.Text, fmt.Sprintf("%.2f", g.Value), wanted, kept})
	}
	return printRows(out, rows)
}

func printRows(out io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

func seconds(s float64) string { return fmt.Sprintf("%.1f", s) }

func percent(share float64) string { return fmt.Sprintf("%.1f%%", share*100) }

func megabytes(bytes int64) string { return fmt.Sprint(bytes / 1e6) }
