// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package wording

import (
	"fmt"
	"strings"
)

const budgetPrefix = "PodDisruptionBudget "

// Budget begins the messages about a PodDisruptionBudget.
func Budget(name string) string { return budgetPrefix + name }

// BudgetIn returns the name of the PodDisruptionBudget with which a message begins.
func BudgetIn(message string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(message, budgetPrefix)
	if !ok {
		return "", false
	}
	name, _, ok = strings.Cut(rest, " ")
	return name, ok && name != ""
}

// BudgetCommand returns the command that shows a PodDisruptionBudget.
func BudgetCommand(namespace, name string) string {
	return fmt.Sprintf("kubectl describe pdb %s -n %s", name, namespace)
}

// NeverOpens returns the beginning of the message about a budget that no number of healthy pods
// opens: what it asks for, and that only a change of it helps. The remedy follows, with
// BudgetCommand.
func NeverOpens(name, asks string) string {
	return fmt.Sprintf("%s never allows an eviction (%s) and cannot open by itself.", Budget(name), asks)
}
