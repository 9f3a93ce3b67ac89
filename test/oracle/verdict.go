// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

// Verdict judges what was recorded so far, given the names of the nodes that a user has
// cordoned.
func (r *Recorder) Verdict(rules Rules, cordoned ...string) ([]string, error) {
	calls, err := r.Calls()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return nil, r.failed
	}
	found, err := r.history.OutOfOrder(calls, rules)
	if err != nil {
		return nil, err
	}
	found = append(found, r.history.WentBack()...)
	found = append(found, r.history.NotPutBack(cordoned...)...)
	found = append(found, EvictedTwice(calls)...)
	if !rules.SeesLate {
		toClosed, _ := r.budgets.SentToClosed(calls)
		found = append(found, toClosed...)
	}
	if rules.Server != "" {
		unasked, err := r.history.Unasked(calls, rules.Server)
		if err != nil {
			return nil, err
		}
		found = append(found, unasked...)
	}
	found = append(found, r.history.LeftOver()...)
	if !rules.BudgetsMove {
		found = append(found, r.books.Broken()...)
	}
	return found, nil
}
