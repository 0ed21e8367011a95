package trident.kept;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.StartsWith;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Seq$;
import scala.math.BigInt;

/**
 * A read of all rows of a keyed state, which gives way to another plan where a query asks for some of its keys.
 *
 * <p>Python's workers read all rows fastest; but Spark cannot push a filter through them, as it can to the scans of the
 * plan in their place.
 */
public final class LiveRead extends Rule<LogicalPlan> {
  private static final TreeNodeTag<Other> TAG = new TreeNodeTag<>("trident.live");

  private final SparkSession session;

  private LiveRead(SparkSession session) {
    this.session = session;
  }

  /** The plan in the place of a frame, and the key columns of both. */
  private static final class Other {
    final LogicalPlan plan;
    final Set<String> keys;

    Other(LogicalPlan plan, Set<String> keys) {
      this.plan = plan;
      this.keys = keys;
    }
  }

  /**
   * Numbers from 0 on, each in a Spark partition of its own.
   *
   * @param bytes how large Spark is to take the frame for, and what is made of it: else it would send that to every task
   */
  @SuppressWarnings({"unchecked", "rawtypes"})
  public static Dataset<Row> parts(SparkSession session, int count, long bytes) {
    Dataset<?> numbers = session.range(0, count, 1, count);
    RDD<InternalRow> rows = numbers.queryExecution().toRdd();
    LogicalRDD relation =
        new LogicalRDD(
            (Seq) DataTypeUtils$.MODULE$.toAttributes(numbers.schema()),
            rows,
            new UnknownPartitioning(count),
            (Seq) Seq$.MODULE$.empty(),
            false,
            Option.empty(),
            session,
            Option.apply(new Statistics(BigInt.apply(bytes), Option.empty(), Statistics.apply$default$3(), false)),
            Option.empty());
    return Dataset$.MODULE$.ofRows(session, relation);
  }

  /**
   * Lets a frame give way to another one of the same rows and columns.
   *
   * @param frame the rows as {@code mapInArrow} gives them
   * @param other its scans know filters of these key columns
   */
  public static void giveWay(Dataset<Row> frame, Dataset<Row> other, List<String> keys) {
    if (!(frame.logicalPlan() instanceof MapInArrow)) {
      throw new IllegalStateException("not of mapInArrow: " + frame.logicalPlan().nodeName());
    }
    frame.logicalPlan().setTagValue(TAG, new Other(other.logicalPlan(), new HashSet<>(keys)));
    install(frame.sparkSession());
  }

  private static synchronized void install(SparkSession session) {
    Seq<Rule<LogicalPlan>> rules = session.experimental().extraOptimizations();
    if (!rules.exists(rule -> rule instanceof LiveRead)) {
      session.experimental().extraOptimizations_$eq(rules.appended(new LiveRead(session)).toSeq());
    }
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    Map<LogicalPlan, Integer> found = new IdentityHashMap<>();
    count(plan, found);
    return found.isEmpty() ? plan : rewritten(plan, found);
  }

  private static void count(LogicalPlan plan, Map<LogicalPlan, Integer> found) {
    Other other = otherOf(plan);
    if (other != null) {
      found.merge(other.plan, 1, Integer::sum);
    }
    for (Iterator<LogicalPlan> each = plan.children().iterator(); each.hasNext(); ) {
      count(each.next(), found);
    }
  }

  private LogicalPlan rewritten(LogicalPlan plan, Map<LogicalPlan, Integer> found) {
    Other other = otherOf(plan);
    if (other != null) {
      // Twice in a query, both would have the same columns of the scans.
      return found.get(other.plan) > 1 ? plan : replaced((Filter) plan, other);
    }
    List<LogicalPlan> children = new ArrayList<>();
    boolean changed = false;
    for (Iterator<LogicalPlan> each = plan.children().iterator(); each.hasNext(); ) {
      LogicalPlan child = each.next(), now = rewritten(child, found);
      changed |= now != child;
      children.add(now);
    }
    return changed ? (LogicalPlan) plan.withNewChildren(seq(children)) : plan;
  }

  /** The plan that is better for a filter right above a frame; null: there is none. */
  private static Other otherOf(LogicalPlan plan) {
    if (!(plan instanceof Filter) || !(((Filter) plan).child() instanceof MapInArrow)) {
      return null;
    }
    LogicalPlan frame = ((Filter) plan).child();
    Option<Other> other = frame.getTagValue(TAG);
    return other.isDefined() && choosesKeys(((Filter) plan).condition(), other.get().keys) ? other.get() : null;
  }

  /** Tells whether a condition leaves some keys alone, by comparisons that a scan can be told. */
  private static boolean choosesKeys(Expression condition, Set<String> keys) {
    if (condition instanceof And) {
      return choosesKeys(((And) condition).left(), keys) || choosesKeys(((And) condition).right(), keys);
    }
    boolean compares =
        condition instanceof BinaryComparison
            || condition instanceof In
            || condition instanceof InSet
            || condition instanceof IsNull
            || condition instanceof StartsWith;
    boolean hasKey = false;
    for (Iterator<Expression> each = condition.children().iterator(); each.hasNext(); ) {
      Expression one = each.next();
      if (one instanceof Attribute && keys.contains(((Attribute) one).name())) {
        hasKey = true;
      } else if (!one.foldable()) {
        return false;
      }
    }
    return compares && hasKey;
  }

  /** The other plan with the filter, optimized; its columns have the identities of the frame's, which parents name. */
  private LogicalPlan replaced(Filter filter, Other other) {
    Seq<Attribute> ours = filter.child().output();
    LogicalPlan plan = new Filter(filter.condition(), new Project(renamed(other.plan.output(), ours), other.plan.clone()));
    LogicalPlan optimized = session.sessionState().optimizer().execute(plan);
    // The optimizer takes the aliases of a plan's own columns away where the names are the same.
    return new Project(renamed(optimized.output(), ours), optimized);
  }

  private static Seq<NamedExpression> renamed(Seq<Attribute> theirs, Seq<Attribute> ours) {
    List<NamedExpression> columns = new ArrayList<>();
    Iterator<Attribute> each = theirs.iterator();
    for (Iterator<Attribute> one = ours.iterator(); one.hasNext(); ) {
      Attribute wanted = one.next(), column = each.next();
      columns.add(
          column.exprId().equals(wanted.exprId())
              ? column
              : new Alias(column, wanted.name(), wanted.exprId(), seq(List.of()), Option.empty(), seq(List.of())));
    }
    return seq(columns);
  }

  private static <T> Seq<T> seq(List<T> values) {
    return JavaConverters.asScalaBuffer(values).toSeq();
  }
}
